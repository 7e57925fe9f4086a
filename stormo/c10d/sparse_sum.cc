// How much the others have is known only after a first collective, and a second one could not
// follow by itself: in the meantime the ranks may have called others. Messages have no order.
#include <stormo/c10d/sparse_sum.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <stormo/c10d/operands.h>

namespace stormo::c10d {
namespace {

using comm::OperationKind;

struct Entries {
  at::Tensor indices, values;
};

class SparseSum : public std::enable_shared_from_this<SparseSum> {
 public:
  SparseSum(comm::Communicator& group, c10::intrusive_ptr<StormoWork> work, at::Tensor tensor,
            bool averages, std::uint32_t tag)
      : group_(group),
        work_(std::move(work)),
        tensor_(std::move(tensor)),
        averages_(averages),
        tag_(tag),
        entries_(static_cast<std::size_t>(group.size())),
        shapes_(static_cast<std::size_t>(group.size())) {}

  void start() {
    const at::NoGradGuard no_grad;
    const at::Tensor own = tensor_.coalesce();
    Entries& mine = entries_[static_cast<std::size_t>(group_.rank())];
    mine = {own.indices().contiguous(), own.values().contiguous()};
    Shape& shape = shapes_[static_cast<std::size_t>(group_.rank())];
    shape = {mine.indices.size(1), mine.indices.size(0), mine.values.element_size(), 1};
    for (const std::int64_t n : tensor_.sizes()) shape[3] = shape[3] * 1'000'003 + n;
    work_->before_completion([self = shared_from_this()] { self->add_up(); });
    for (const Rank peer : peers()) {
      send(peer, copied(mine.indices));
      send(peer, copied(mine.values));
      work_->expect_part();  // its entries
      work_->expect_part();
    }
    const comm::Buffer all{shapes_.data(), 4 * group_.size(), DType::kInt64};
    group_.all_gather_async(shape, all).then([self = shared_from_this()](const Status& outcome) {
      self->receive_all(outcome);
    });
    work_->seal();
  }

 private:
  /// Number of entries; what has to be equal: dimensions of an index, bytes of an element, a hash
  /// of the sizes.
  using Shape = std::array<std::int64_t, 4>;

  std::vector<Rank> peers() const {
    std::vector<Rank> others;
    for (Rank r = 0; r < group_.size(); ++r) {
      if (r != group_.rank()) others.push_back(r);
    }
    return others;
  }

  /// All shapes are there.
  void receive_all(const Status& met) {
    Status outcome = met;
    for (const Rank peer : peers()) {
      if (outcome.ok()) outcome = check(peer);
    }
    // nobody receives the entries that were sent: who waits for that learns why
    if (met.ok() && !outcome.ok()) group_.fail(outcome);
    for (const Rank peer : peers()) {
      if (outcome.ok()) {
        receive(peer);
      } else {
        work_->part_done(outcome);
        work_->part_done(outcome);
      }
    }
  }

  void send(Rank peer, const comm::Buffer& buffer) {
    comm::Request r{.kind = OperationKind::kSend, .in = {&buffer, 1}, .out = {&buffer, 1}};
    r.root = peer;
    r.tag = tag_;
    work_->perform(group_, r);
  }

  Status check(Rank peer) const {
    const Shape& mine = shapes_[static_cast<std::size_t>(group_.rank())];
    const Shape& theirs = shapes_[static_cast<std::size_t>(peer)];
    if (std::equal(mine.begin() + 1, mine.end(), theirs.begin() + 1)) return {};
    return {Code::kMismatch,
            fmt::format("all_reduce of sparse tensors: those of ranks {} and {} differ in shape, "
                        "type or number of sparse dimensions",
                        group_.rank(), peer)};
  }

  void receive(Rank peer) {
    const c10::InferenceMode inference(tensor_.is_inference());
    const Entries& mine = entries_[static_cast<std::size_t>(group_.rank())];
    Entries& theirs = entries_[static_cast<std::size_t>(peer)];
    const std::int64_t count = shapes_[static_cast<std::size_t>(peer)].front();
    theirs.indices = at::empty({mine.indices.size(0), count}, mine.indices.options());
    std::vector<std::int64_t> sizes = mine.values.sizes().vec();
    sizes.front() = count;
    theirs.values = at::empty(sizes, mine.values.options());
    for (const at::Tensor& part : {theirs.indices, theirs.values}) {
      group_.recv_async(copied(part), peer, tag_)
          .then([self = shared_from_this()](const Status& s) { self->work_->part_done(s); });
    }
  }

  void add_up() {
    const c10::InferenceMode inference(tensor_.is_inference());
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> indices, values;
    for (const Entries& e : entries_) {
      indices.push_back(e.indices);
      values.push_back(e.values);
    }
    at::Tensor sum =
        at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), at::cat(values, 0), tensor_.sizes())
            .coalesce();
    if (averages_) sum.div_(group_.size());
    tensor_.copy_(sum);
  }

  comm::Communicator& group_;
  const c10::intrusive_ptr<StormoWork> work_;
  const at::Tensor tensor_;
  const bool averages_;
  const std::uint32_t tag_;
  std::vector<Entries> entries_;  // by rank
  std::vector<Shape> shapes_;     // by rank
};

}  // namespace

void sum_sparse(comm::Communicator& group, const c10::intrusive_ptr<StormoWork>& work,
                const at::Tensor& tensor, bool averages, std::uint32_t tag) {
  std::make_shared<SparseSum>(group, work, tensor, averages, tag)->start();
}

}  // namespace stormo::c10d
