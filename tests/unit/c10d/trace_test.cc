// What a Sink of the Communicator sees of PyTorch's operations: what Stormo itself has done.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>
#include <type_traits>

#include "tests/unit/c10d/backends.h"

namespace stormo::c10d {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// The names of the operations that a rank has communicated in.
class SeenNames final : public Sink {
 public:
  void record(const Event& event) override {
    if (event.lane != Lane::kCommunication) return;
    const std::lock_guard lock(mutex_);
    names_.emplace_back(event.name);
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::move(names_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> names_;
};

/// Of rank 0 and rank 1.
struct Rank0And1 {
  ::c10d::Backend& b;
  comm::Communicator& group;

  int me() const { return b.getRank(); }
  template <class Call>
  std::vector<std::string> seen(const Call& call) const {
    SeenNames names;
    group.set_sink(&names);
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
    } else {
      call()->wait();
    }
    group.set_sink(nullptr);
    return names.take();
  }
};

void expect_gathers(const Rank0And1& r) {
  Tensors one{torch::ones({2})}, both{torch::ones({2}), torch::ones({2})};
  Tensors wholes{torch::ones({4})};
  std::vector<Tensors> lists{both}, none, of_ranks{{both[0]}, {both[1]}};
  std::vector<Tensors>& of_root = r.me() == 0 ? lists : none;
  EXPECT_THAT(r.seen([&] { return r.b.allgather(lists, one); }), ElementsAre("all_gather"));
  EXPECT_THAT(r.seen([&] { return r.b._allgather_base(wholes[0], one[0]); }),
              ElementsAre("all_gather"));
  EXPECT_THAT(r.seen([&] { return r.b.allgather_coalesced(of_ranks, one); }),
              ElementsAre("all_gather"));
  EXPECT_THAT(r.seen([&] { return r.b.allgather_into_tensor_coalesced(wholes, one); }),
              ElementsAre("all_gather"));
  EXPECT_THAT(r.seen([&] { return r.b.gather(of_root, one); }), ElementsAre("gather"));
  EXPECT_THAT(r.seen([&] { return r.b.scatter(one, of_root); }), ElementsAre("scatter"));
}

void expect_sums(const Rank0And1& r) {
  Tensors one{torch::ones({2})}, both{torch::ones({2}), torch::ones({2})};
  Tensors wholes{torch::ones({4})};
  std::vector<Tensors> lists{both};
  EXPECT_THAT(r.seen([&] { return r.b.allreduce(one); }), ElementsAre("all_reduce"));
  EXPECT_THAT(r.seen([&] { return r.b.allreduce_coalesced(both); }), ElementsAre("all_reduce"));
  EXPECT_THAT(r.seen([&] { return r.b.reduce(one); }), ElementsAre("reduce"));
  EXPECT_THAT(r.seen([&] { return r.b.reduce_scatter(one, lists); }),
              ElementsAre("reduce_scatter"));
  EXPECT_THAT(r.seen([&] { return r.b._reduce_scatter_base(one[0], wholes[0]); }),
              ElementsAre("reduce_scatter"));
  EXPECT_THAT(r.seen([&] { return r.b.reduce_scatter_tensor_coalesced(one, wholes); }),
              ElementsAre("reduce_scatter"));
  Tensors sparse{torch::eye(2).to_sparse()};  // numbers of entries; indices, values
  EXPECT_THAT(r.seen([&] { return r.b.allreduce_sparse(sparse); }),
              UnorderedElementsAre("all_gather", "send", "send", "recv", "recv"));
}

void expect_others(const Rank0And1& r) {
  Tensors one{torch::ones({2})}, in{torch::ones({2}), torch::ones({2})}, out{in[0] + 1, in[1] + 1};
  std::vector<std::int64_t> equal;
  EXPECT_THAT(r.seen([&] { return r.b.broadcast(one); }), ElementsAre("broadcast"));
  EXPECT_THAT(r.seen([&] { return r.b.alltoall(out, in); }), ElementsAre("all_to_all"));
  EXPECT_THAT(r.seen([&] { return r.b.alltoall_base(out[0], in[0], equal, equal); }),
              ElementsAre("all_to_all"));
  EXPECT_THAT(r.seen([&] { return r.b.barrier(); }), ElementsAre("barrier"));
  const auto what = r.me() == 0 ? "send" : "recv";
  EXPECT_THAT(r.seen([&] { return r.me() == 0 ? r.b.send(one, 1, 0) : r.b.recv(one, 0, 0); }),
              ElementsAre(what));
  EXPECT_THAT(r.seen([&] { return r.me() == 0 ? r.b.send(one, 1, 1) : r.b.recvAnysource(one, 1); }),
              ElementsAre(what));
  // last: rank 0 does not wait for its send
  EXPECT_THAT(r.seen([&] { r.b.monitoredBarrier({}); }), Contains("recv"));
}

TEST(Trace, ShowsTheRequestsOfEveryOperation) {
  const Backends backends({2});
  on_backends(backends, [&](::c10d::Backend& b) {
    const Rank0And1 r{b, backends[static_cast<std::size_t>(b.getRank())].communicator()};
    expect_gathers(r);
    expect_sums(r);
    expect_others(r);
  });
}

}  // namespace
}  // namespace stormo::c10d
