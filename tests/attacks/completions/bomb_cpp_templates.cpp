template<int N> struct F { static constexpr long v = F<N - 1>::v + F<N - 2>::v * N; };
template<> struct F<0> { static constexpr long v = 1; };
template<> struct F<1> { static constexpr long v = 1; };
template<int A, int B> struct G { typedef G<A, B - 1> X; typedef G<A - 1, B> Y; static constexpr long v = X::v + Y::v; };
template<int A> struct G<A, 0> { static constexpr long v = 1; };
template<int B> struct G<0, B> { static constexpr long v = 1; };
template<> struct G<0, 0> { static constexpr long v = 1; };
int main() { return G<400, 400>::v + F<800>::v; }
