// Two threads as ranks add up what they hold; exits 0 when both get the sum.
#include <array>
#include <cstdio>
#include <span>
#include <thread>
#include <vector>

#include <stormo/comm/communicator.h>

int main() {
  auto group = stormo::comm::make_inproc_group(2);
  if (!group.ok()) {
    std::fprintf(stderr, "%s\n", group.status().to_string().c_str());
    return 1;
  }
  std::array<std::vector<float>, 2> data;
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < 2; ++r) {
    data[r].assign(1000, static_cast<float>(r + 1));
    ranks.emplace_back([&, r] {
      const auto buffer = stormo::comm::buffer_of(std::span(data[r]));
      const stormo::Status status = (*group)[r]->all_reduce(buffer, stormo::comm::ReduceOp::kSum);
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return data[0] == std::vector<float>(1000, 3) && data[0] == data[1] ? 0 : 1;
}
