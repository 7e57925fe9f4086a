#include <stormo/comm/group/memory_map.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include <stormo/comm/group/posting.h>

namespace stormo::comm {
namespace {

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

std::size_t padded(const Buffer& b) { return (b.bytes() + 63) / 64 * 64; }

/// Whether this rank's buffers, used in place, hold the outcome.
bool has_outcome(const Request& r, Rank me) {
  if (r.kind == OperationKind::kBroadcast) return r.root != me;
  return r.kind != OperationKind::kReduce || r.root == me;
}

/// Calls f(buffer, first element, elements) for what peers may use of buffers in place.
template <class F>
void for_shared(const Program& program, const Operands& operands, F&& f) {
  if (program.unshared.empty()) {
    operands.layout.for_pieces({0, operands.layout.count()}, f);
    return;
  }
  for (plan::ChunkId c = 0; c < program.chunks; ++c) {
    if (program.unshared[static_cast<std::size_t>(c)]) continue;
    operands.layout.for_pieces(operands.partition.of(c, Area::kOut), f);
  }
}

/// Copies elements [begin, begin + n) of a buffer to the same place of another one, or of itself.
void copy_elements(void* to, const void* from, std::int64_t begin, std::int64_t n,
                   std::size_t width) {
  if (to == from || n == 0) return;
  const std::size_t before = static_cast<std::size_t>(begin) * width;
  std::memcpy(static_cast<std::byte*>(to) + before, static_cast<const std::byte*>(from) + before,
              static_cast<std::size_t>(n) * width);
}

/// A rank's share of a private buffer from which on the kernel's copy is the faster way on some
/// processors, and on all that are known (docs/adr/0005-private-buffers.md).
constexpr std::size_t kDirectFrom = 16 << 10;
constexpr std::size_t kAlwaysDirectFrom = 2 << 20;

// What lies behind the posting of an operation on parts: distances from the Arena's beginning, by
// which a missing part before the memory's beginning may also be negative (they wrap around).
constexpr std::size_t kInAt = 0;
constexpr std::size_t kOutAt = 1;
constexpr std::size_t kScratchAt = 2;
// all_to_all with counts: bytes from the input's beginning to the block of each rank of this host
constexpr std::size_t kBlocksAt = 3;
static_assert(kBlocksAt + transport::HostRegion::kMaxRanks + 1 <= Posting::kMaxBuffers);

}  // namespace

MemoryMap::~MemoryMap() {
  for (const Block& block : {in_, out_, scratch_}) host_.arena().deallocate(block.data);
}

Status MemoryMap::reserve(Block& block, std::size_t bytes) {
  if (bytes <= block.bytes) return {};
  host_.arena().deallocate(block.data);
  block = {static_cast<std::byte*>(host_.arena().allocate(bytes)), bytes};
  if (block.data != nullptr) return {};
  block.bytes = 0;
  return {Code::kExhausted,
          fmt::format("the arena of local rank {} has no room for a copy of {} bytes", host_.rank(),
                      bytes)};
}

/// Copies are the faster way for little. For much it is the kernel, unless it can be copied in
/// pieces. Else time will tell.
void MemoryMap::decide_copies(const Request& request, bool can_be_cut) {
  direct_from_ = host_.threads() ? 0 : std::numeric_limits<std::size_t>::max();
  if (host_.threads()) return;
  Posting& mine = Posted(host_, host_.rank()).posting();
  const auto n = static_cast<std::size_t>(host_.size());
  if (host_.reached_by_all()) {
    if (!can_be_cut) direct_from_ = kAlwaysDirectFrom * n;
    std::size_t most = 0;
    const auto look_at = [&](std::span<const Buffer> buffers) {
      for (const Buffer& b : buffers) most = std::max(most, needs_copy(b) ? b.bytes() : 0);
    };
    look_at(request.in);
    if (!in_place(request.kind)) look_at(request.out);
    if (most < kDirectFrom * n) return;
    CopyOrFetch& trial = trials_[{request.kind, static_cast<int>(std::bit_width(most))}];
    measured_.trial = &trial;
    if (!trial.copies()) direct_from_ = kDirectFrom * n;
    mine.next_time = trial.proposes_copies() ? Posting::NextTime::kCopy : Posting::NextTime::kFetch;
    if (!trial.copies()) return;
  }
  if (!can_be_cut) return;
  mine.in_pieces = true;
  direct_from_ = 0;  // the whole needs no copy
}

bool MemoryMap::needs_copy(const Buffer& buffer) const {
  return is_private(buffer) && buffer.bytes() < direct_from_;
}

Status MemoryMap::post_in_place(const Request& request, Rank me, const Program& program,
                                bool can_be_cut, Operands& operands) {
  transport::Arena& arena = host_.arena();
  measured_ = {};
  has_private_ = std::ranges::any_of(request.in, [&](const Buffer& b) { return is_private(b); });
  if (has_private_) decide_copies(request, can_be_cut);
  const TimePoint start = now();
  const bool shared = program.shares_in || program.shares_out;
  const auto copied = [&](const Buffer& b) { return shared && needs_copy(b); };
  std::size_t copies = 0;
  for (const Buffer& b : request.in) copies += copied(b) ? padded(b) : 0;
  STORMO_RETURN_IF_ERROR(reserve(in_, copies));
  RankMemory& memory = operands.memory[static_cast<std::size_t>(host_.rank())];
  auto* offsets = reinterpret_cast<std::uint64_t*>(Posted(host_, host_.rank()).room());
  mine_.clear();
  memory.out.clear();
  std::byte* next = in_.data;
  for (const Buffer& b : request.in) {
    auto* data = static_cast<std::byte*>(b.data);
    if (copied(b)) {
      if (program.unshared.empty()) data = next;
      mine_.push_back(next);
      next += padded(b);
    } else {
      mine_.push_back(data);
    }
    memory.out.push_back(address_of(data));
    if (shared) *offsets++ = arena.offset_of(mine_.back());
  }
  memory.in = memory.out;
  if (copies > 0 && contributes(request, me)) {
    for_shared(program, operands, [&](std::size_t b, std::int64_t begin, std::int64_t n) {
      copy_elements(mine_[b], request.in[b].data, begin, n, size_of(operands.dtype));
    });
  }
  measured_.posting = now() - start;
  return {};
}

Status MemoryMap::post_parts(const Request& request, Rank me, int size, const Program& program,
                             Operands& operands) {
  transport::Arena& arena = host_.arena();
  const auto width = size_of(operands.dtype);
  RankMemory& memory = operands.memory[static_cast<std::size_t>(host_.rank())];
  const Buffer in = request.in.empty() ? Buffer{} : request.in.front();
  const Buffer out = request.out.empty() ? Buffer{} : request.out.front();
  measured_ = {};
  has_private_ = is_private(in) || is_private(out);
  if (has_private_) decide_copies(request, /*can_be_cut=*/false);
  const TimePoint start = now();
  // a part stands where it would be in the whole
  const auto before = static_cast<std::uintptr_t>(operands.partition.part_begin(me, size)) * width;
  const bool gathers =
      request.kind == OperationKind::kAllGather || request.kind == OperationKind::kGather;
  const bool pairs = request.kind == OperationKind::kAllToAll;
  const std::uintptr_t before_in = gathers ? before : 0;
  const std::uintptr_t before_out = gathers || pairs ? 0 : before;

  const auto* seen_in = static_cast<const std::byte*>(in.data);
  if (program.shares_in && needs_copy(in)) {
    STORMO_RETURN_IF_ERROR(reserve(in_, in.bytes()));
    if (in.count > 0) std::memcpy(in_.data, in.data, in.bytes());
    seen_in = in_.data;
  }
  auto* real_out = static_cast<std::byte*>(out.data);
  if (program.shares_out && needs_copy(out)) {
    STORMO_RETURN_IF_ERROR(reserve(out_, out.bytes()));
    real_out = out_.data;
  }
  if (program.uses_scratch) {
    const auto whole = static_cast<std::size_t>(operands.layout.count()) * width;
    STORMO_RETURN_IF_ERROR(
        reserve(scratch_, pairs ? whole * static_cast<std::size_t>(size) : whole));
  }
  mine_ = {real_out};
  // reductions may overwrite the input, so all must use the one that others see
  memory.in = {address_of(reduces(request.kind) ? seen_in : in.data) - before_in};
  memory.out = {address_of(real_out) - before_out};
  memory.scratch = address_of(scratch_.data);

  auto* offsets = reinterpret_cast<std::uint64_t*>(Posted(host_, host_.rank()).room());
  if (program.shares_in) offsets[kInAt] = arena.offset_of(seen_in) - before_in;
  if (program.shares_out) offsets[kOutAt] = arena.offset_of(real_out) - before_out;
  if (program.uses_scratch) offsets[kScratchAt] = arena.offset_of(scratch_.data);
  if (pairs) post_blocks(request, operands, me, size);
  measured_.posting = now() - start;
  return {};
}

/// Ranks of other hosts get theirs by messages.
void MemoryMap::post_blocks(const Request& request, Operands& operands, Rank me, int size) const {
  if (request.counts.empty()) return;  // equal blocks: everybody can tell
  auto* begins = reinterpret_cast<std::uint64_t*>(Posted(host_, host_.rank()).room()) + kBlocksAt;
  const Rank first_here = me - host_.rank();
  for (int local = 0; local <= host_.size(); ++local) {  // and the end of the last one
    begins[local] =
        static_cast<std::uint64_t>(operands.partition.part_begin(first_here + local, size)) *
        size_of(operands.dtype);
  }
}

bool MemoryMap::is_in_pieces() const {
  bool any = false;
  for (int r = 0; r < host_.size(); ++r) any |= Posted(host_, r).posting().in_pieces;
  return any;
}

MemoryMap::Measured MemoryMap::begin_pieces() {
  meet();
  return measured_;
}

void MemoryMap::end_pieces(const Measured& whole, const Request& request) {
  measured_ = whole;
  if (measured_.trial != nullptr) judge_copies(request);
}

/// All follow the first one who proposes something.
void MemoryMap::meet() {
  if (measured_.trial == nullptr) return;
  measured_.met = now();
  for (int r = 0; r < host_.size(); ++r) {
    const Posting::NextTime proposal = Posted(host_, r).posting().next_time;
    if (proposal == Posting::NextTime::kNoProposal) continue;
    measured_.copies_next = proposal == Posting::NextTime::kCopy;
    return;
  }
}

/// The lengths of blocks are their senders' and their receivers': only here both are known.
Status MemoryMap::check_blocks(const Request& request, const Operands& operands) const {
  if (request.kind != OperationKind::kAllToAll || request.counts.empty()) return {};
  const Rank me = operands.partition.me(), first_here = me - host_.rank();
  for (int local = 0; local < host_.size(); ++local) {
    const auto* const begins =
        reinterpret_cast<const std::uint64_t*>(Posted(host_, local).room()) + kBlocksAt;
    const std::uint64_t sent =
        (begins[host_.rank() + 1] - begins[host_.rank()]) / size_of(operands.dtype);
    const Rank from = first_here + local;
    const std::int64_t expected = request.out_counts[static_cast<std::size_t>(from)];
    if (std::cmp_equal(sent, expected)) continue;
    return {Code::kMismatch, fmt::format("rank {} sends {} elements to rank {}, which expects {}",
                                         from, sent, me, expected)};
  }
  return {};
}

Status MemoryMap::find_others(const Request& request, Operands& operands) {
  meet();
  STORMO_RETURN_IF_ERROR(check_blocks(request, operands));
  for (int r = 0; r < host_.size(); ++r) {
    if (r == host_.rank()) continue;
    const auto* offsets = reinterpret_cast<const std::uint64_t*>(Posted(host_, r).room());
    const std::uintptr_t base = address_of(host_.address(r, 0));
    RankMemory& theirs = operands.memory[static_cast<std::size_t>(r)];
    theirs.unmapped = host_.memory_of(r);
    if (in_place(request.kind)) {
      theirs.out.resize(request.in.size());
      for (std::size_t b = 0; b < theirs.out.size(); ++b) theirs.out[b] = base + offsets[b];
      theirs.in = theirs.out;
      continue;
    }
    theirs.in = {base + offsets[kInAt]};
    theirs.out = {base + offsets[kOutAt]};
    theirs.scratch = base + offsets[kScratchAt];
    if (request.kind != OperationKind::kAllToAll || request.counts.empty()) continue;
    // only the block for this rank is read: it shall be found where it would be in this rank's own
    theirs.in[0] +=
        offsets[kBlocksAt + static_cast<std::size_t>(host_.rank())] -
        static_cast<std::uintptr_t>(operands.partition.part_begin(operands.partition.me(), 0)) *
            size_of(operands.dtype);
  }
  return {};
}

void MemoryMap::copy_back(const Request& request, Rank me, const Program& program,
                          const Operands& operands) {
  const auto copy = [&](std::size_t b, std::int64_t begin, std::int64_t n) {
    copy_elements(request.out[b].data, mine_[b], begin, n, size_of(operands.dtype));
  };
  if (!in_place(request.kind)) {
    for (std::size_t b = 0; b < request.out.size(); ++b) copy(b, 0, request.out[b].count);
  } else if (has_outcome(request, me)) {
    for_shared(program, operands, copy);
  }
  if (measured_.trial != nullptr) judge_copies(request);
}

void MemoryMap::judge_copies(const Request& request) {
  const std::chrono::duration<double> took = measured_.posting + (now() - measured_.met);
  std::size_t bytes = 0;
  for (const auto& list : {request.in, request.out}) {
    for (const Buffer& b : list) bytes += b.bytes();
  }
  measured_.trial->record_time(took.count() / static_cast<double>(bytes), measured_.copies_next);
}

}  // namespace stormo::comm
