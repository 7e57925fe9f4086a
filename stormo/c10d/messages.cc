// Messages of a StormoBackend. They never block their caller, so any number of them may be started
// in any order.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stormo/c10d/backend.h>
#include <stormo/c10d/blocking_call.h>
#include <stormo/c10d/sparse_sum.h>

namespace stormo::c10d {
namespace {

using ::c10d::OpType;
using comm::OperationKind;
using comm::Request;

/// Tags of PyTorch are not negative: those from here on are free.
constexpr std::uint32_t kMonitoredBarrier = 0x80000000u, kSparseSum = 0xc0000000u;

/// In the place of a rank that is missing.
constexpr Rank kNobody = -1;

/// Rank 0 speaks when the timeout of a monitored barrier has passed: the others wait a little
/// longer.
constexpr Duration kUntilRankZeroSpeaks = std::chrono::seconds(2);

/// Two tags of the n-th call of a kind.
std::uint32_t tags_of(std::uint32_t kind, std::uint32_t n) { return kind + 2 * (n % (1u << 29)); }

std::uint32_t tag_of(int tag) {
  TORCH_CHECK_VALUE(tag >= 0, "stormo: the tag ", tag, " is negative");
  return static_cast<std::uint32_t>(tag);
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "stormo: ", tensors.size(),
                    " tensors in a message; one is expected");
  check_dense(tensors.front());
  return tensors.front();
}

}  // namespace

StormoBackend::WorkHandle StormoBackend::start_message(OpType type, const char* title,
                                                       const at::Tensor& tensor, Rank peer,
                                                       int tag) {
  StormoWork::Description d{.rank = getRank(), .type = type, .title = title};
  d.inputs = {tensor};
  if (type != OpType::SEND) d.results = {tensor};
  d.sequence = sequence_.load();
  d.timeout = timeout_.load();
  d.peer = peer;
  d.tag = tag;
  return begin(std::move(d));
}

StormoBackend::WorkPtr StormoBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& tensor = only(tensors);
  check_rank(to, "send to rank");
  auto work = start_message(OpType::SEND, "send", tensor, to, tag);
  const at::Tensor memory = in_order(tensor);
  work->keep(memory);
  const comm::Buffer buffer = copied(memory);
  Request r{.kind = OperationKind::kSend, .in = {&buffer, 1}, .out = {&buffer, 1}, .root = to};
  r.tag = tag_of(tag);
  work->perform(group(), r);
  work->seal();
  return work;
}

void StormoBackend::receive(StormoWork& work, const at::Tensor& tensor, Rank from, int tag) {
  const at::Tensor memory = in_order_unread(tensor);
  work.keep(memory);
  const comm::Buffer buffer = copied(memory);
  Request r{.kind = OperationKind::kReceive, .in = {&buffer, 1}, .out = {&buffer, 1}, .root = from};
  r.tag = tag_of(tag);
  if (from == comm::kAnyRank) r.source = &work.source();
  std::function<void()> after;
  if (!memory.is_same(tensor)) after = [=] { assign(tensor, memory); };
  work.perform(group(), r, std::move(after));
  work.seal();
}

StormoBackend::WorkPtr StormoBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& tensor = only(tensors);
  check_rank(from, "receive from rank");
  auto work = start_message(OpType::RECV, "recv", tensor, from, tag);
  work->source() = from;
  receive(*work, tensor, from, tag);
  return work;
}

StormoBackend::WorkPtr StormoBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor& tensor = only(tensors);
  auto work = start_message(OpType::RECVANYSOURCE, "recvAnySource", tensor, comm::kAnyRank, tag);
  receive(*work, tensor, comm::kAnyRank, tag);
  return work;
}

StormoBackend::WorkPtr StormoBackend::allreduce_sparse(Tensors& tensors,
                                                       const ::c10d::AllreduceOptions& opts) {
  using Op = ::c10d::ReduceOp;
  TORCH_CHECK_VALUE(
      tensors.size() == 1 && tensors.front().is_sparse() && tensors.front().device().is_cpu(),
      "stormo: a sparse all_reduce takes one sparse (COO) tensor on the CPU");
  const auto op = opts.reduceOp.op_;
  TORCH_CHECK_VALUE(op == Op::SUM || op == Op::AVG,
                    "stormo: sparse tensors can only be summed or averaged");
  Call call(opts);
  call.async = true;  // it is made of messages
  auto work = start(OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", call, tensors, tensors);
  sum_sparse(group(), work, tensors.front(), op == Op::AVG, tags_of(kSparseSum, sparse_sums_++));
  if (!opts.asyncOp) work->wait();
  return work;
}

comm::Work StormoBackend::pass_word(bool sends, Rank peer, std::uint32_t tag, const Word& word) {
  const comm::Buffer buffer(word.get(), 1, DType::kInt64);
  comm::Work work =
      sends ? group().send_async(buffer, peer, tag) : group().recv_async(buffer, peer, tag);
  work.then([word](const Status&) {});  // its memory lives as long as the message
  return work;
}

void StormoBackend::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  StormoWork::Description d{
      .rank = getRank(), .type = OpType::BARRIER, .title = "monitored_barrier"};
  d.sequence = sequence_.fetch_add(1) + 1;
  d.timeout = timeout_or_own(opts.timeout);
  announce(d);
  // a rank that comes late to one that did not succeed must not be taken for one in the next
  const std::uint32_t tag = tags_of(kMonitoredBarrier, monitored_barriers_++);
  const BlockingCall call(link_);
  if (getRank() == 0) {
    hear_all(d.timeout, tag, wait_all_ranks);
  } else {
    report_to_rank_zero(d.timeout, tag);
  }
  if (d.record) d.record->complete(0);
}

void StormoBackend::report_to_rank_zero(std::chrono::milliseconds timeout, std::uint32_t tag) {
  const Duration most = std::min(duration_of(timeout), Duration::max() - kUntilRankZeroSpeaks);
  const Deadline by = Deadline::after(most + kUntilRankZeroSpeaks);
  const auto missing = std::make_shared<std::int64_t>(kNobody);
  comm::Work here = pass_word(true, 0, tag, std::make_shared<std::int64_t>(getRank()));
  comm::Work go_on = pass_word(false, 0, tag + 1, missing);
  Status outcome = here.wait(by);
  if (outcome.ok()) outcome = go_on.wait(by);
  if (!outcome.ok()) check_interrupt();
  const std::string why =
      outcome.ok() ? fmt::format("rank {} has not come", *missing) : outcome.to_string();
  TORCH_CHECK(outcome.ok() && *missing == kNobody, "Rank ", getRank(),
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n "
              "Original exception: \n",
              why);
}

/// The texts are Gloo's, which people look for.
void StormoBackend::hear_all(std::chrono::milliseconds timeout, std::uint32_t tag,
                             bool wait_all_ranks) {
  const Deadline by = Deadline::after(duration_of(timeout));
  std::vector<comm::Work> arrivals;
  for (Rank r = 1; r < getSize(); ++r) {
    arrivals.push_back(pass_word(false, r, tag, std::make_shared<std::int64_t>()));
  }
  std::vector<Rank> here, missing;
  std::string error;
  for (Rank r = 1; r < getSize() && error.empty(); ++r) {
    if (!wait_all_ranks && by.expired()) {
      error =
          fmt::format("Rank 0 timed out in monitoredBarrier after {} ms.\n {} {}", timeout.count(),
                      here.empty() ? "No ranks" : "Processed ranks:", fmt::join(here, ", "));
    }
    const Status outcome = arrivals[static_cast<std::size_t>(r - 1)].wait(by);
    (outcome.ok() ? here : missing).push_back(r);
    if (outcome.ok() || wait_all_ranks || !error.empty()) continue;
    error = fmt::format(
        "[Rank 0]: Rank {} failed to pass monitoredBarrier in {} ms\n Original exception: \n{}", r,
        timeout.count(), outcome.to_string());
  }
  if (error.empty() && !missing.empty()) {
    error = fmt::format("[Rank 0]: Ranks {} failed to pass monitoredBarrier in {} ms",
                        fmt::join(missing, ", "), timeout.count());
  }
  const Rank who = error.empty() ? kNobody : missing.empty() ? 0 : missing.front();
  const auto word = std::make_shared<std::int64_t>(who);
  for (Rank r = 1; r < getSize(); ++r) static_cast<void>(pass_word(true, r, tag + 1, word));
  if (!error.empty()) check_interrupt();
  TORCH_CHECK(error.empty(), error);
}

}  // namespace stormo::c10d
