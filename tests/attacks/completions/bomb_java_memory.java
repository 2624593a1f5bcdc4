import java.util.*; public class Main { public static void main(String[] a) { List<long[]> k = new ArrayList<>(); while (true) k.add(new long[1 << 22]); } }
