#include <stormo/c10d/backend.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <stormo/c10d/arguments.h>
#include <stormo/c10d/leave_all.h>

namespace stormo::c10d {
namespace {

using ::c10d::OpType;
using comm::OperationKind;
using comm::Request;

}  // namespace

StormoBackend::StormoBackend(GroupRanks ranks, c10::intrusive_ptr<StormoOptions> options)
    : Backend(ranks.get().rank(), ranks.get().size()),
      ranks_(std::move(ranks)),
      link_(std::make_shared<GroupLink>(group())),
      options_(std::move(options)),
      timeout_(options_->timeout),
      flight_records_(FlightRecords::of(link_, *this, options_->global_ranks_in_group)) {
  ranks_.set_timeout(duration_of(timeout_));
  init();
  add_living(*this);
}

StormoBackend::~StormoBackend() {
  remove_living(*this);
  leave();
  link_->cut();
}

std::chrono::milliseconds StormoBackend::timeout_or_own(std::chrono::milliseconds timeout) const {
  return timeout == ::c10d::kUnsetTimeout ? timeout_.load() : timeout;
}

void StormoBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  timeout_ = timeout;
  ranks_.set_timeout(duration_of(timeout));
}

StormoBackend::WorkHandle StormoBackend::start(OpType type, const char* title, const Call& call,
                                               Tensors inputs, Tensors results) {
  StormoWork::Description d{.rank = getRank(), .type = type, .title = title};
  d.inputs = std::move(inputs);
  d.results = std::move(results);
  d.sequence = sequence_.fetch_add(1) + 1;
  d.timeout = timeout_or_own(call.timeout);
  d.async = call.async;
  return begin(std::move(d));
}

StormoBackend::WorkHandle StormoBackend::begin(StormoWork::Description operation) {
  announce(operation);
  return c10::make_intrusive<StormoWork>(link_, std::move(operation));
}

/// All operations begin here.
void StormoBackend::announce(StormoWork::Description& operation) {
  if (at::hasCallbacks()) tell_profiler(*this, operation);
  if (flight_records_) operation.record = flight_records_->begin(*this, operation);
}

void StormoBackend::check_rank(std::int64_t rank, const char* what) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "stormo: ", what, " ", rank, " of ", getSize(),
                    " ranks");
}

// In place.

StormoBackend::WorkPtr StormoBackend::broadcast(Tensors& tensors,
                                                const ::c10d::BroadcastOptions& opts) {
  const at::Tensor tensor = only(tensors, "tensors");
  check_rank(opts.rootRank, "root");
  const auto root = static_cast<Rank>(opts.rootRank);
  const at::Tensor memory = root == getRank() ? in_order(tensor) : in_order_unread(tensor);
  auto work = start(OpType::BROADCAST, "broadcast", opts, tensors, tensors);
  work->keep(memory);
  const comm::Buffer buffer = copied(memory);
  const bool brings_back = root != getRank() && !memory.is_same(tensor);
  work->perform(group(), request(OperationKind::kBroadcast, buffer, buffer, root),
                brings_back ? std::function<void()>([=] { assign(tensor, memory); }) : nullptr);
  work->seal();
  return work;
}

/// One request for each type.
void StormoBackend::reduce_all(StormoWork& work, const Tensors& tensors, const ::c10d::ReduceOp& op,
                               OperationKind kind, Rank root) {
  std::map<std::pair<DType, comm::ReduceOp>, std::vector<comm::Buffer>> buffers;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor memory = multiplies_first(op) ? multiplied(tensor, op) : in_order(tensor);
    if (!memory.is_same(tensor)) {
      check_result(tensor);
      copies.emplace_back(tensor, memory);
    }
    const Arithmetic how = arithmetic_of(op.op_, memory.scalar_type());
    buffers[{how.dtype, how.op}].push_back(reduced(memory, how));
  }
  const bool has_result = kind == OperationKind::kAllReduce || root == getRank();
  for (const auto& [tensor, memory] : copies) work.keep(memory);
  if (has_result && !copies.empty()) {
    work.before_completion([copies] {
      for (const auto& [tensor, memory] : copies) assign(tensor, memory);
    });
  }
  for (const auto& [how, list] : buffers) {
    Request r;
    r.kind = kind;
    r.in = r.out = list;
    r.reduction = how.second;
    r.root = root;
    work.perform(group(), r);
  }
}

StormoBackend::WorkPtr StormoBackend::combine_all(OpType type, const char* title, const Call& call,
                                                  const Tensors& tensors,
                                                  const ::c10d::ReduceOp& op) {
  for (const at::Tensor& t : tensors) {
    check_dense(t);
    arithmetic_of(op.op_, t.scalar_type());
  }
  auto work = start(type, title, call, tensors, tensors);
  reduce_all(*work, tensors, op, OperationKind::kAllReduce, 0);
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::allreduce(Tensors& tensors,
                                                const ::c10d::AllreduceOptions& opts) {
  if (only(tensors, "tensors").is_sparse()) return allreduce_sparse(tensors, opts);
  return combine_all(OpType::ALLREDUCE, "all_reduce", opts, tensors, opts.reduceOp);
}

StormoBackend::WorkPtr StormoBackend::allreduce_coalesced(
    Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& opts) {
  return combine_all(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", opts, tensors,
                     opts.reduceOp);
}

StormoBackend::WorkPtr StormoBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only(tensors, "tensors");
  check_rank(opts.rootRank, "root");
  check_dense(tensor);
  arithmetic_of(opts.reduceOp.op_, tensor.scalar_type());
  auto work = start(OpType::REDUCE, "reduce", opts, tensors, tensors);
  reduce_all(*work, tensors, opts.reduceOp, OperationKind::kReduce,
             static_cast<Rank>(opts.rootRank));
  work->seal();
  return work;
}

StormoBackend::WorkPtr StormoBackend::barrier(const ::c10d::BarrierOptions& opts) {
  auto work = start(OpType::BARRIER, "barrier", opts, {}, {});
  work->perform(group(), Request{});
  work->seal();
  return work;
}

// The group itself.

::c10d::ErrorType StormoBackend::getError() {
  const Status status = group().status();
  if (status.ok()) return ::c10d::ErrorType::SUCCESS;
  return status.code() == Code::kDeadlineExceeded ? ::c10d::ErrorType::TIMEOUT
                                                  : ::c10d::ErrorType::COMM_ERROR;
}

c10::intrusive_ptr<::c10d::Backend> StormoBackend::split(const c10::intrusive_ptr<::c10d::Store>&,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<Options>& opts) {
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<StormoOptions>(opts ? opts->timeout : timeout_.load());
  const std::string name = opts ? opts->group_name : "";
  TORCH_CHECK_VALUE(!name.empty(), "stormo: split() of a group needs the new one's name");
  options->group_name = name;
  for (const int r : ranks) {
    const auto& all = options_->global_ranks_in_group;
    options->global_ranks_in_group.push_back(all.empty() ? static_cast<std::uint64_t>(r)
                                                         : all[static_cast<std::size_t>(r)]);
  }
  const Deadline by = Deadline::after(duration_of(options->timeout));
  return c10::make_intrusive<StormoBackend>(ranks_.part(ranks, name, by), std::move(options));
}

void StormoBackend::abort() {
  group().fail({Code::kCancelled, "abort() of the group by rank " + std::to_string(getRank())});
}

/// Never throws: PyTorch shuts groups down one after the other, and has to come to the last one.
void StormoBackend::leave() {
  if (flight_records_) flight_records_->leave();
  const Status left = group().leave();
  if (left.ok() || !group().status().ok()) return;  // a failure of the job has been told
  fmt::print(stderr, "stormo: warning: rank {} has left its group: {}\n", getRank(),
             left.message());
}

at::Tensor StormoBackend::allocateTensor(long size, at::TensorOptions options) {
  return new_memory(group().arena(), {size}, options);
}

}  // namespace stormo::c10d
