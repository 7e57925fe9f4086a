#include <stormo/c10d/flight_records.h>

#include <algorithm>
#include <condition_variable>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/FlightRecorderDetail.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <stormo/c10d/arguments.h>

namespace stormo::c10d {
namespace {

using ::c10d::OpType;
using Tensors = std::vector<at::Tensor>;

/// The recorder asks events of a device whether they have come. There are none: times are entered.
struct NoEvent {
  static bool query() { return false; }
};
/// PyTorch's own recorder is Gloo's alone: its library exports no way to add to it. This is another
/// one of the same class.
using Recorder = ::c10d::FlightRecorder<NoEvent>;

/// How often it is looked whether a group has failed: a rank in no operation learns it so.
constexpr auto kLook = std::chrono::milliseconds(100);

bool are_asked_for() {
  return ::c10d::getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 0) > 0;
}

bool is_message(OpType type) {
  return type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE;
}

/// torchfrtrace knows the names of PyTorch's own backends and of their operations, no others; that
/// of PyTorch 2.11 does not know Gloo.
constexpr bool kKnowsGloo = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12;
constexpr std::string_view kLibrary = kKnowsGloo ? "gloo" : "nccl";
constexpr std::string_view kBarrier = kKnowsGloo ? "barrier" : "all_reduce_barrier";

std::string_view title_for_analyser(const StormoWork::Description& operation) {
  switch (operation.type) {
    case OpType::BARRIER: return kBarrier;
    case OpType::ALLREDUCE_COALESCED: return "allreduce_coalesced";
    case OpType::_ALLREDUCE_SPARSE: return "all_reduce";
    case OpType::COALESCED: return "all_gather_into_tensor_coalesced";
    default: return operation.title;
  }
}

std::string name_for_analyser(const StormoWork::Description& operation) {
  return fmt::format("{}:{}", kLibrary, title_for_analyser(operation));
}

/// Lists of one tensor for each rank are to it what they are together.
Tensors for_analyser(OpType type, const Tensors& tensors) {
  const bool are_parts = type == OpType::ALLGATHER || type == OpType::ALLGATHER_COALESCED ||
                         type == OpType::REDUCE_SCATTER || type == OpType::ALLTOALL;
  if (!are_parts || tensors.size() <= 1) return tensors;
  return {at::empty({sum(counts_of(tensors))}, tensors.front().options().device(at::kMeta))};
}

std::int64_t elements_of(const Tensors& tensors) { return sum(counts_of(tensors)); }

}  // namespace

void tell_profiler(const ::c10d::Backend& group, const StormoWork::Description& operation) {
  const auto& d = operation;
  const std::vector<std::int64_t> splits;
  RECORD_PARAM_COMMS_DATA(
      std::make_tuple(static_cast<std::int64_t>(d.sequence), is_message(d.type)),
      std::make_tuple(group.getGroupUid(), group.getGroupDesc()), d.inputs, d.results, d.rank,
      std::string(d.title), elements_of(d.inputs), elements_of(d.results),
      d.inputs.empty() ? at::kByte : d.inputs.front().scalar_type(), splits, splits, -1, -1,
      group.getSize());
}

/// Looks after the groups of the process that are recorded.
class FlightWatch {
 public:
  static FlightWatch& of_process() {
    static auto* const one = new FlightWatch;  // its thread runs until the very end
    return *one;
  }

  void add(FlightRecords* records) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(records);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_one();
  }

  void remove(FlightRecords* records) {
    const std::lock_guard lock(mutex_);
    write_if_failed();
    std::erase(groups_, records);
  }

  std::string dump() {
    const std::lock_guard lock(mutex_);
    return pickled();
  }

  /// The recorder reads names of groups without a lock.
  void name(const FlightRecords::Name& group, std::vector<std::uint64_t> global_ranks) {
    const std::lock_guard lock(names_mutex_);
    Recorder::get()->record_pg_ranks(group, std::move(global_ranks));
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !groups_.empty(); });
      changed_.wait_for(lock, kLook);
      write_if_failed();
    }
  }

  /// Once for all groups of a world, which fail together.
  void write_if_failed() {
    const auto failed = std::find_if(groups_.begin(), groups_.end(),
                                     [](const auto* g) { return g->link_->failed(); });
    if (failed == groups_.end()) return;
    const std::uint64_t rank = (*failed)->global_ranks_[(*failed)->own_rank_];
    try {
      ::c10d::DebugInfoWriter::getWriter(static_cast<int>(rank)).write(pickled());
    } catch (const std::exception& e) {
      TORCH_WARN("stormo: the flight records are not written: ", e.what());
    }
    std::erase_if(groups_, [](const auto* g) { return g->link_->failed(); });
  }

  std::string pickled() {
    for (FlightRecords* g : groups_) {
      g->status_->lastEnqueuedSeq = g->status_->lastStartedSeq = g->last_begun_;
      g->status_->lastCompletedSeq = g->last_completed_;
    }
    const std::lock_guard lock(names_mutex_);
    return Recorder::get()->dump(std::nullopt, /*includeCollectives=*/true,
                                 /*includeStackTraces=*/true, /*onlyActive=*/false);
  }

  std::mutex mutex_, names_mutex_;
  std::condition_variable changed_;
  std::vector<FlightRecords*> groups_;
  std::thread thread_;
};

class FlightRecords::Recorded final : public OperationRecord {
 public:
  Recorded(std::shared_ptr<FlightRecords> group, const StormoWork::Description& d)
      : group_(std::move(group)), type_(d.type), sequence_(d.sequence), tag_(d.tag) {
    const Place place = group_->place_of(d);
    const bool message = is_message(type_);
    id_ = Recorder::get()->record(
        group_->id_, place.group, place.sequence, message ? place.sequence : 0, place.sequence,
        place.title, message && type_ != OpType::SEND ? Tensors() : for_analyser(type_, d.inputs),
        for_analyser(type_, d.results), nullptr, nullptr, d.timeout, group_->status_, message);
    change([](auto& entry) { entry.time_discovered_started_ = entry.time_created_; });
    if (!message) group_->last_begun_ = static_cast<std::int64_t>(sequence_);
  }
  ~Recorded() override {
    change([](auto& entry) { entry.retired_ = true; });
  }
  void complete(Rank source) override {
    const bool from_any = type_ == OpType::RECVANYSOURCE;
    Place place = from_any ? group_->place_of_message(false, source, tag_) : Place();
    change([&](auto& entry) {
      const c10::time_t now = c10::getTime();
      entry.time_discovered_completed_ = now;
      entry.duration_ = static_cast<float>(now - entry.time_created_) * 1e-6f;
      if (!from_any) return;
      entry.pg_name_ = std::move(place.group);
      entry.collective_seq_id_ = entry.p2p_seq_id_ = entry.op_id_ = place.sequence;
      entry.profiling_name_ = std::move(place.title);
    });
    if (!is_message(type_)) group_->last_completed_ = static_cast<std::int64_t>(sequence_);
  }

 private:
  /// Of the entry, unless newer ones have taken its place.
  template <class F>
  void change(F f) {
    Recorder& recorder = *Recorder::get();
    const std::lock_guard lock(recorder.mutex_);
    auto& entry = recorder.entries_[*id_ % recorder.max_entries_];
    if (entry.id_ == *id_) f(entry);
  }

  const std::shared_ptr<FlightRecords> group_;
  const OpType type_;
  const std::uint64_t sequence_;
  const int tag_;
  std::optional<std::size_t> id_;
};

FlightRecords::FlightRecords(std::shared_ptr<GroupLink> link, std::size_t own_rank,
                             std::vector<std::uint64_t> global_ranks)
    : link_(std::move(link)),
      id_([] {
        static std::atomic<std::size_t> next{0};
        return next++;
      }()),
      own_rank_(own_rank),
      global_ranks_(std::move(global_ranks)),
      status_(std::make_shared<::c10d::ProcessGroupStatus>()) {}

std::shared_ptr<FlightRecords> FlightRecords::of(std::shared_ptr<GroupLink> link,
                                                 const ::c10d::Backend& group,
                                                 std::vector<std::uint64_t> global_ranks) {
  if (!are_asked_for()) return nullptr;
  if (global_ranks.empty()) {
    global_ranks.resize(static_cast<std::size_t>(group.getSize()));
    std::iota(global_ranks.begin(), global_ranks.end(), std::uint64_t{0});
  }
  const auto own_rank = static_cast<std::size_t>(group.getRank());
  std::shared_ptr<FlightRecords> records(
      new FlightRecords(std::move(link), own_rank, std::move(global_ranks)));
  FlightWatch::of_process().add(records.get());
  return records;
}

std::unique_ptr<OperationRecord> FlightRecords::begin(const ::c10d::Backend& group,
                                                      const StormoWork::Description& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_named_) {  // PyTorch names a group after it has made it
      name_ = {group.getGroupUid(), group.getGroupDesc()};
      FlightWatch::of_process().name(name_, global_ranks_);
      is_named_ = true;
    }
  }
  return std::make_unique<Recorded>(shared_from_this(), operation);
}

FlightRecords::Place FlightRecords::place_of(const StormoWork::Description& operation) {
  const auto& d = operation;
  if (is_message(d.type)) return place_of_message(d.type == OpType::SEND, d.peer, d.tag);
  return {name_, d.sequence, name_for_analyser(d)};
}

/// torchfrtrace expects that all members of a group take part in each of its operations, in one
/// order. So the messages from one rank to another with one tag are a group of these two. A receive
/// from any source is in a group of its own, until it is known from whom it has come.
FlightRecords::Place FlightRecords::place_of_message(bool is_send, Rank peer, int tag) {
  const std::uint64_t own = global_ranks_[own_rank_];
  const bool from_any = peer == comm::kAnyRank;
  const std::uint64_t other = from_any ? own : global_ranks_[static_cast<std::size_t>(peer)];
  const std::uint64_t from = is_send ? own : other, to = is_send ? other : own;
  // their numbers in the group of two
  const int source = from > to ? 1 : 0, target = to > from ? 1 : 0;
  Place place;
  place.title = is_send ? fmt::format("{}:send {}->{}", kLibrary, source, target)
                        : fmt::format("{}:recv {}<-{}", kLibrary, target, source);
  const std::lock_guard lock(mutex_);
  place.group = {fmt::format("{} {}->{} tag {}", std::get<0>(name_),
                             from_any ? "any" : std::to_string(from), to, tag),
                 std::get<1>(name_)};
  place.sequence = ++num_messages_[place.group];
  if (place.sequence == 1) {
    std::vector<std::uint64_t> ranks{std::min(own, other)};
    if (own != other) ranks.push_back(std::max(own, other));
    FlightWatch::of_process().name(place.group, std::move(ranks));
  }
  return place;
}

void FlightRecords::leave() { FlightWatch::of_process().remove(this); }

std::string FlightRecords::dump() {
  return are_asked_for() ? FlightWatch::of_process().dump() : std::string();
}

}  // namespace stormo::c10d
