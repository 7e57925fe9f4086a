#include <stormo/train/store/host_copy.h>

#include <ATen/Parallel.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <torch/utils.h>

#include <stormo/base/check.h>
#include <stormo/base/clock.h>
#include <stormo/server/message/place.h>
#include <stormo/tensor/parallel_for.h>
#include <stormo/train/store/host_parts.h>

namespace stormo::train {
namespace {

using optim::UpdateJournal;
using optim::UpdateLane;
using transport::MemoryFile;

/// Fewer elements than these are not worth waking threads for.
constexpr std::int64_t kLeastForThreads = 32768;
/// How long another rank may take to end its part.
constexpr Duration kEndsUpdate = std::chrono::seconds(5);
constexpr Duration kLookAgain = std::chrono::milliseconds(1);

std::int64_t element_size(const torch::Tensor& t) {
  return static_cast<std::int64_t>(t.element_size());
}

std::int64_t bytes_with_gap(const torch::Tensor& t) {
  return aligned_elements(t.numel(), t.scalar_type()) * element_size(t);
}

/// What a rank tells the others of its host.
struct HostRow {
  std::int64_t file = 0;  // number of its memory; 0: none
  std::int64_t has_values = 0;
  std::int64_t has_state = 0;
  std::int64_t pid = 0, pid_namespace = 0, started = 0;
  std::int64_t threads = 1;
};
using RowFields = std::array<std::int64_t, sizeof(HostRow) / sizeof(std::int64_t)>;

/// While a process has it no other file has its number.
std::int64_t number_of(const HostCopy::Memory& memory) {
  struct stat info {};
  if (memory == nullptr || ::fstat(memory->fd(), &info) != 0) return 0;
  return static_cast<std::int64_t>(info.st_ino);
}

/// In the order in which they lie.
std::vector<torch::Tensor> state_arrays(FusedOptimizer& optimizer) {
  FusedOptimizer::Values values = optimizer.values();
  std::vector<torch::Tensor> arrays = std::move(values.weights);
  for (const auto& slot : values.slots) arrays.insert(arrays.end(), slot.begin(), slot.end());
  return arrays;
}

std::uint64_t bytes_of_all(const std::vector<torch::Tensor>& arrays) {
  std::int64_t bytes = 1;  // a file has some
  for (const torch::Tensor& t : arrays) bytes += bytes_with_gap(t);
  return static_cast<std::uint64_t>(bytes);
}

/// The optimizer's arrays from now on, in the order of state_arrays(). Parameters keep their
/// shapes.
void use_arrays(FusedOptimizer& optimizer, const std::vector<torch::Tensor>& arrays) {
  const std::size_t parameters = optimizer.parameters().size();
  for (std::size_t i = 0; i < parameters; ++i) {
    torch::Tensor p = optimizer.parameters()[i].tensor;
    p.set_data(arrays[i].view(p.sizes()));
  }
  std::vector<std::vector<torch::Tensor>> slots;
  for (std::size_t at = parameters; at < arrays.size(); at += parameters) {
    const auto first = arrays.begin() + static_cast<std::ptrdiff_t>(at);
    slots.emplace_back(first, first + static_cast<std::ptrdiff_t>(parameters));
  }
  optimizer.place_slots(slots);
}

}  // namespace

Result<std::unique_ptr<HostCopy>> HostCopy::create(comm::Communicator& host,
                                                   FusedOptimizer& optimizer, const Kept& before,
                                                   bool has_state) {
  const torch::NoGradGuard no_grad;
  std::unique_ptr<HostCopy> copy(new HostCopy(host, optimizer));
  STORMO_ASSIGN_OR_RETURN(const Owner owner, copy->find_owner(before, has_state));
  copy->divide();
  STORMO_RETURN_IF_ERROR(copy->map(owner, before.memory));
  const std::vector<torch::Tensor> arrays = copy->arrays_in_memory();
  if (owner.rank == host.rank() && !owner.has_values) {
    const std::vector<torch::Tensor> values = state_arrays(optimizer);
    for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i].copy_(values[i].flatten());
  }
  // until all is there each rank keeps what it has: the owner may be lost
  STORMO_RETURN_IF_ERROR(host.barrier());
  use_arrays(optimizer, arrays);
  return copy;
}

void HostCopy::leave(FusedOptimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> own;
  for (const torch::Tensor& array : state_arrays(optimizer)) own.push_back(array.clone());
  use_arrays(optimizer, own);
}

/// The first one that has the state: its values count. Where all that have it share it already, it
/// stays where it is. Else they are copied: to the memory that it has, whose pages are there, if
/// nobody's state lies in it. Memory of which nobody has the state is left behind: who was lost
/// while it received one may still write there.
Result<HostCopy::Owner> HostCopy::find_owner(const Kept& before, bool has_state) {
  const auto me = transport::ProcessName::own();
  const HostRow mine{.file = number_of(before.memory),
                     .has_values = before.has_values ? 1 : 0,
                     .has_state = has_state ? 1 : 0,
                     .pid = me.pid,
                     .pid_namespace = static_cast<std::int64_t>(me.pid_namespace),
                     .started = static_cast<std::int64_t>(me.started),
                     .threads = at::get_num_threads()};
  auto own = std::bit_cast<RowFields>(mine);
  std::vector<std::int64_t> all(static_cast<std::size_t>(host_.size()) * own.size());
  STORMO_RETURN_IF_ERROR(host_.all_gather(own, all));
  std::vector<HostRow> rows;
  for (auto at = all.begin(); at != all.end(); at += std::ssize(own)) {
    std::copy_n(at, own.size(), own.begin());
    rows.push_back(std::bit_cast<HostRow>(own));
  }
  for (const HostRow& row : rows) {
    processes_.push_back({.pid = static_cast<pid_t>(row.pid),
                          .pid_namespace = static_cast<std::uint64_t>(row.pid_namespace),
                          .started = static_cast<std::uint64_t>(row.started)});
    lanes_of_rank_ = std::max(lanes_of_rank_, static_cast<int>(row.threads));
  }
  const auto first = std::ranges::find(rows, 1, &HostRow::has_state);
  if (first == rows.end()) return Owner{};
  Owner owner{.rank = static_cast<int>(first - rows.begin())};
  const auto all_who_have_state = [&](auto&& is_so) {
    return std::ranges::all_of(rows,
                               [&](const HostRow& r) { return r.has_state == 0 || is_so(r); });
  };
  owner.has_values = first->file != 0 && all_who_have_state([&](const HostRow& row) {
                       return row.has_values != 0 && row.file == first->file;
                     });
  const bool is_free = all_who_have_state([](const HostRow& row) { return row.has_values == 0; });
  if (owner.has_values || is_free) owner.file = first->file;
  return owner;
}

// The owner's files; others find them by their numbers in its process.
Status HostCopy::map(const Owner& owner, const Memory& before) {
  const std::uint64_t bytes = bytes_of_all(state_arrays(optimizer_));
  const std::uint64_t lanes = blocks_.size() * sizeof(UpdateLane::Memory);
  Status made;
  if (owner.rank == host_.rank()) {
    const auto make = [&](const char* name, std::uint64_t size, Memory& file) {
      Result<MemoryFile> created = MemoryFile::create(name, size);
      if (created.ok()) {
        file = std::make_shared<MemoryFile>(*std::move(created));
        if (size >= MemoryFile::kHugePage) (void)file->back_with_huge_pages(0, size);
      } else if (made.ok()) {
        made = created.status();
      }
    };
    if (owner.file != 0) memory_ = before;
    if (owner.file == 0) make("stormo-state", bytes, memory_);
    make("stormo-lanes", lanes, lanes_memory_);
  }
  std::array<std::int64_t, 2> files{memory_ ? memory_->fd() : -1,
                                    lanes_memory_ ? lanes_memory_->fd() : -1};
  STORMO_RETURN_IF_ERROR(host_.broadcast(std::span<std::int64_t>(files), owner.rank));
  if (owner.rank == host_.rank()) return made;
  if (files[0] < 0 || files[1] < 0) {
    return {Code::kExhausted, "the first rank of this host has no memory for its parameters"};
  }
  const server::Place place{.host = server::Place::own().host,
                            .process = processes_[static_cast<std::size_t>(owner.rank)]};
  const auto take = [&](std::int64_t fd, std::uint64_t size, Memory& file) -> Status {
    Result<MemoryFile> mapped = server::map_file_of(place, static_cast<int>(fd), size);
    if (!mapped.ok()) {
      return mapped.status().within(
          "the copy of parameters of this host (strategy.parameters=replicated does without)");
    }
    file = std::make_shared<MemoryFile>(*std::move(mapped));
    return {};
  };
  if (owner.file != 0 && number_of(before) == owner.file) memory_ = before;
  if (memory_ == nullptr) STORMO_RETURN_IF_ERROR(take(files[0], bytes, memory_));
  return take(files[1], lanes, lanes_memory_);
}

// They hold the file, whoever else lets go of it.
std::vector<torch::Tensor> HostCopy::arrays_in_memory() const {
  std::vector<torch::Tensor> arrays;
  std::int64_t offset = 0;
  for (const torch::Tensor& like : state_arrays(optimizer_)) {
    arrays.push_back(torch::from_blob(
        memory_->data() + offset, {like.numel()}, [held = memory_](void*) {}, like.options()));
    offset += bytes_with_gap(like);
  }
  return arrays;
}

// A lane has an equal part of every parameter, cut at cache lines; that of a rank are its lanes',
// one for each of its threads.
void HostCopy::divide() {
  const auto lanes = static_cast<std::int64_t>(host_.size()) * lanes_of_rank_;
  blocks_.resize(static_cast<std::size_t>(lanes));
  for (std::size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const torch::Tensor& p = optimizer_.parameters()[i].tensor;
    const auto cut = [&](std::int64_t lane) {
      return begin_of_part(p.numel(), lane, lanes, p.scalar_type());
    };
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      if (cut(lane) == cut(lane + 1)) continue;
      blocks_[static_cast<std::size_t>(lane)].push_back(
          {.parameter = i, .begin = cut(lane), .end = cut(lane + 1)});
    }
  }
}

std::size_t HostCopy::own_lane(int lane) const {
  return static_cast<std::size_t>(host_.rank() * lanes_of_rank_ + lane);
}

UpdateLane HostCopy::lane(std::size_t index) const {
  return UpdateLane(reinterpret_cast<UpdateLane::Memory*>(lanes_memory_->data()) + index);
}

UpdateJournal::Changes HostCopy::changes_of(const Block& block) const {
  const RangeUpdate* const update = update_of_[block.parameter];
  UpdateJournal::Changes changes;
  if (update == nullptr) return changes;
  const auto element = static_cast<std::int64_t>(size_of(update->piece.dtype));
  const auto part = [&](void* array) {
    return array == nullptr
               ? std::span<std::byte>()
               : std::span(static_cast<std::byte*>(array) + block.begin * element,
                           static_cast<std::size_t>((block.end - block.begin) * element));
  };
  changes[0] = part(update->piece.weights);
  for (std::size_t s = 0; s < update->piece.slots.size(); ++s) {
    changes[1 + s] = part(update->piece.slots[s]);
  }
  return changes;
}

UpdateLane::Work HostCopy::work_on(std::size_t lane) const {
  const std::vector<Block>& blocks = blocks_[lane];
  return {.number = number_,
          .blocks = static_cast<std::uint32_t>(blocks.size()),
          .changes = [this, &blocks](std::uint32_t block) { return changes_of(blocks[block]); },
          .perform =
              [this, &blocks](std::uint32_t block, UpdateJournal& journal) {
                const RangeUpdate& update = *update_of_[blocks[block].parameter];
                optim::UpdateRange piece = update.piece;
                const std::size_t done = journal.begin() / size_of(piece.dtype);
                piece.begin = blocks[block].begin + static_cast<std::int64_t>(done);
                piece.end = blocks[block].end;
                optim::journaled_update_of(optimizer_.options(), piece.dtype)(
                    optimizer_.options(), update.step, piece, journal);
              }};
}

/// Unless another one was faster.
void HostCopy::do_lane(std::size_t index, std::uint32_t before) {
  const auto me = static_cast<std::uint32_t>(host_.rank() + 1);
  UpdateLane mine = lane(index);
  if (before != me && !mine.claim(me, before)) return;
  mine.run(work_on(index));
  mine.leave();
}

Status HostCopy::update(const StepRate& rate, std::span<const RangeGradient> gradients) {
  STORMO_ASSIGN_OR_RETURN(updates_, optimizer_.begin_step(rate, gradients));
  update_of_.assign(optimizer_.parameters().size(), nullptr);
  std::int64_t elements = 0;
  for (const RangeUpdate& update : updates_) {
    update_of_[update.parameter] = &update;
    elements += update.piece.end / host_.size();
  }
  ++number_;
  tensor::parallel_for(lanes_of_rank_, elements < kLeastForThreads ? lanes_of_rank_ : 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t l = begin; l < end; ++l) {
                           do_lane(own_lane(static_cast<int>(l)), 0);
                         }
                       });
  return {};
}

Status HostCopy::finish(const std::function<void(const std::string&)>& say) {
  STORMO_CHECK(number_ > 0, "there is no update to finish");
  for (std::size_t l = 0; l < blocks_.size(); ++l) STORMO_RETURN_IF_ERROR(end_lane(l, say));
  note_changes();
  return {};
}

// Who has ended left a lane as it was at its last instruction. Who lives ends it by itself.
Status HostCopy::end_lane(std::size_t index, const std::function<void(const std::string&)>& say) {
  const UpdateLane its = lane(index);
  const UpdateLane::Work work = work_on(index);
  const transport::ProcessName& me = processes_[static_cast<std::size_t>(host_.rank())];
  const TimePoint patient_until = std::chrono::steady_clock::now() + kEndsUpdate;
  while (!its.is_done(work)) {
    const std::uint32_t worker = its.worker();
    if (worker == 0 || worker == static_cast<std::uint32_t>(host_.rank() + 1)) {
      do_lane(index, worker);
      continue;
    }
    const transport::ProcessName& name = processes_[worker - 1];
    const bool is_thread = name == me;
    transport::PeerProcess process(is_thread ? transport::ProcessName{} : name);
    const bool is_late = std::chrono::steady_clock::now() >= patient_until;
    if (process.can_be_ended() && (is_late || process.is_stopped())) {
      say(fmt::format("local rank {} (pid {}) {} in an update that others have to end: ended",
                      worker - 1, name.pid, is_late ? "does not go on" : "was stopped"));
      process.end();
      process.wait(kEndsUpdate);
    }
    if (process.is_gone()) {
      do_lane(index, worker);
    } else if (is_late && !is_thread) {
      return {Code::kPeerLost,
              fmt::format("local rank {} (pid {}) does not end its update, and cannot be ended",
                          worker - 1, name.pid)};
    } else {
      process.wait(kLookAgain);
    }
  }
  return {};
}

void HostCopy::note_changes() {
  for (const NamedParameter& p : optimizer_.parameters()) {
    p.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

double HostCopy::gradient_squares(std::span<const RangeGradient> gradients) const {
  std::vector<const RangeGradient*> of(optimizer_.parameters().size());
  for (const RangeGradient& gradient : gradients) of[gradient.parameter] = &gradient;
  std::vector<double> sums(static_cast<std::size_t>(lanes_of_rank_));
  tensor::parallel_for(lanes_of_rank_, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      double& sum = sums[static_cast<std::size_t>(l)];
      for (const Block& block : blocks_[own_lane(static_cast<int>(l))]) {
        const RangeGradient* const gradient = of[block.parameter];
        if (gradient == nullptr) continue;
        const optim::UpdateRange piece{.begin = block.begin,
                                       .end = block.end,
                                       .dtype = gradient->dtype,
                                       .gradients = gradient->sources,
                                       .gradient_dtype = gradient->dtype};
        sum += optim::sum_gradients(piece, nullptr);
      }
    }
  });
  double all = 0;
  for (const double sum : sums) all += sum;
  return all;
}

}  // namespace stormo::train
