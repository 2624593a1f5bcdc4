#include <bits/stdc++.h>
int main() { std::vector<int> v(2); for (auto &x : v) std::cin >> x; std::cout << std::accumulate(v.begin(), v.end(), 0) << std::endl; }
