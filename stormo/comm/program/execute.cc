#include <stormo/comm/program/execute.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>

#include <stormo/comm/program/remote_operands.h>

namespace stormo::comm {
namespace {

/// Combines what one message brings with this rank's own chunk while the rest is under way.
class Overlap final : public transport::Progress {
 public:
  /// `apply(begin, end)` combines these elements.
  Overlap(std::size_t width, std::function<void(std::int64_t, std::int64_t)> apply)
      : width_(width), apply_(std::move(apply)) {}

  void received(std::size_t bytes) override {
    if (bytes >= done_ * width_ + kAtLeastBytes) advance(bytes);
  }
  void advance(std::size_t bytes) {
    const std::size_t end = bytes / width_;
    if (end > done_) apply_(static_cast<std::int64_t>(done_), static_cast<std::int64_t>(end));
    done_ = std::max(done_, end);
  }

 private:
  static constexpr std::size_t kAtLeastBytes = 64 << 10;
  const std::size_t width_;
  const std::function<void(std::int64_t, std::int64_t)> apply_;
  std::size_t done_ = 0;  // elements
};

class Execution {
 public:
  Execution(const Program& program, const Operands& operands, const Executor& executor, Deadline by)
      : program_(program), o_(operands), executor_(executor), by_(by), work_(*executor.workspace) {}

  /// Calls f(buffer, offset, n) for each stretch of the chunk within one buffer; `offset` counts
  /// elements from the chunk's beginning. The first error is the outcome.
  template <class F>
  Status for_pieces(plan::ChunkId chunk, F&& f) const {
    const plan::Extent extent = o_.partition.of(chunk, Area::kOut);
    if (o_.layout.num_buffers() == 1) {
      return extent.size() > 0 ? f(std::size_t{0}, std::int64_t{0}, extent.size()) : Status();
    }
    Status outcome;
    std::int64_t offset = 0;
    o_.layout.for_pieces(extent, [&](std::size_t b, std::int64_t, std::int64_t n) {
      if (outcome.ok()) outcome = f(b, offset, n);
      offset += n;
    });
    return outcome;
  }

  Status reduce_piece(const Instruction& step, std::size_t b, std::int64_t offset, std::int64_t n) {
    std::vector<Operand>& sources = work_.sources;
    std::vector<void*>& destinations = work_.destinations;
    sources.clear();
    destinations.clear();
    far_.clear();
    for (const Source& s : step.sources) {
      if (s.received >= 0) {
        const std::byte* from = received_[static_cast<std::size_t>(s.received)];
        sources.push_back({from + bytes(offset), 1});
        continue;
      }
      const double scale = s.raw ? o_.scales[static_cast<std::size_t>(s.place.local)] : 1;
      if (scale == 0) continue;
      const std::byte* from = at(s.place, step.chunk, b, offset);
      if (const auto* m = unmapped(s.place, from)) far_.add_source(sources.size(), *m, from);
      sources.push_back({from, scale});
    }
    for (const Place& d : step.destinations) {
      std::byte* to = at(d, step.chunk, b, offset);
      if (const auto* m = unmapped(d, to)) {
        far_.add_destination(*m, to);
      } else {
        destinations.push_back(to);
      }
    }
    if (!far_.empty()) {
      return far_.combine(
          sources, destinations, n, size_of(o_.dtype),
          [this](auto near, auto to, std::int64_t count) { combine(near, to, count); });
    }
    const bool nothing_to_do = sources.size() == 1 && destinations.size() == 1 &&
                               sources[0].data == destinations[0] &&
                               (sources[0].scale == 1 || o_.how != Combine::kSum);
    if (!nothing_to_do) combine(sources, destinations, n);
    return {};
  }

  Status copy_step(const Instruction& step) {
    return for_pieces(step.chunk, [&](std::size_t b, std::int64_t offset, std::int64_t n) {
      const Place from = step.sources[0].place;
      const Place to = step.destinations[0];
      const std::byte* const source = at(from, step.chunk, b, offset);
      std::byte* const destination = at(to, step.chunk, b, offset);
      return to.local == o_.local_rank ? load(destination, from, source, bytes(n))
                                       : store(to, destination, source, bytes(n));
    });
  }

  /// Block by block, so that the running reduction stays in the cache.
  Status prefix_step(const Instruction& step) {
    return for_pieces(step.chunk, [&](std::size_t b, std::int64_t offset, std::int64_t count) {
      for (std::int64_t begin = 0; begin < count; begin += kBlock) {
        STORMO_RETURN_IF_ERROR(
            prefix_block(step, b, offset + begin, std::min(kBlock, count - begin)));
      }
      return Status();
    });
  }

  /// The reductions that may overlap with the exchange follow it.
  Status exchange_step(const Instruction& step, std::span<const Instruction> following) {
    sends_.clear();
    receives_.clear();
    received_.clear();
    overlaps_.clear();
    const Place mine{o_.local_rank, Area::kOut};
    for (const WireMove& m : step.sends) {
      STORMO_RETURN_IF_ERROR(
          for_pieces(m.chunk, [&](std::size_t b, std::int64_t offset, std::int64_t n) {
            std::byte* from = at({mine.local, m.area}, m.chunk, b, offset);
            sends_.push_back({m.peer, o_.tag, {from, bytes(n)}});
            return Status();
          }));
    }
    std::size_t kept = 0;
    for (const WireMove& m : step.receives) {
      if (m.how == plan::ReceiveOp::kReduce) kept += padded(m.chunk);
    }
    if (work_.received.size() < kept) work_.received.resize(kept);
    std::byte* next = work_.received.data();
    for (const WireMove& m : step.receives) {
      const bool keep = m.how == plan::ReceiveOp::kReduce;
      const Instruction* reduction = overlapping(static_cast<int>(received_.size()), following);
      received_.push_back(next);
      STORMO_RETURN_IF_ERROR(
          for_pieces(m.chunk, [&](std::size_t b, std::int64_t offset, std::int64_t n) {
            std::byte* to = keep ? received_.back() + bytes(offset)
                                 : at({mine.local, m.area}, m.chunk, b, offset);
            receives_.push_back({m.peer, o_.tag, {to, bytes(n)}, overlap(reduction, offset)});
            return Status();
          }));
      if (keep) next += padded(m.chunk);
    }
    STORMO_RETURN_IF_ERROR(executor_.network->exchange(sends_, receives_, by_));
    for (const transport::Incoming& in : receives_) {
      if (in.progress != nullptr) static_cast<Overlap*>(in.progress)->advance(in.bytes.size());
    }
    return {};
  }

 private:
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(o_.dtype);
  }

  /// Where element `offset` of the chunk, which lies in buffer `b`, is.
  std::byte* at(Place place, plan::ChunkId chunk, std::size_t b, std::int64_t offset) {
    const std::int64_t element = o_.partition.of(chunk, place.area).begin + offset;
    if (place.area == Area::kStaging) {
      return staged(bytes(element), bytes(o_.partition.of(chunk, place.area).size() - offset));
    }
    const RankMemory& m = o_.memory[static_cast<std::size_t>(place.local)];
    const std::uintptr_t base = place.area == Area::kScratch ? m.scratch
                                : place.area == Area::kIn    ? m.in[b]
                                                             : m.out[b];
    const std::int64_t before = o_.layout.begin_of(b);
    return reinterpret_cast<std::byte*>(base + bytes(element - before));
  }

  /// Grows as chunks are staged, which happens in the order of addresses only by chance: so it is
  /// sized for the whole operation at once.
  std::byte* staged(std::size_t offset, std::size_t size) {
    const std::size_t whole = std::max(offset + size, bytes(o_.layout.count()));
    if (work_.stage.size() < whole) work_.stage.resize(whole);
    return work_.stage.data() + offset;
  }

  void combine(std::span<const Operand> sources, std::span<void* const> destinations,
               std::int64_t n) {
    if (o_.user != nullptr) {
      reduce(o_.dtype, o_.user->combine, sources, destinations, n);
    } else {
      o_.kernel(o_.how, sources, destinations, n);
    }
  }

  /// Where `p`, which is in that place, lies when it is not mapped here; null: it is.
  const transport::PeerMemory* unmapped(Place place, const std::byte* p) const {
    if (place.area == Area::kStaging) return nullptr;
    const transport::PeerMemory* const m =
        o_.memory[static_cast<std::size_t>(place.local)].unmapped;
    return m == nullptr || m->is_mapped(p) ? nullptr : m;
  }

  Status load(std::byte* to, Place place, const std::byte* from, std::size_t size) const {
    if (const auto* m = unmapped(place, from)) return m->read(to, from, size);
    if (to != from) std::memcpy(to, from, size);
    return {};
  }
  Status store(Place place, std::byte* to, const std::byte* from, std::size_t size) const {
    if (const auto* m = unmapped(place, to)) return m->write(to, from, size);
    std::memcpy(to, from, size);
    return {};
  }

  static constexpr std::int64_t kBlock = 1024;  // elements

  Status prefix_block(const Instruction& step, std::size_t b, std::int64_t offset, std::int64_t n) {
    alignas(64) std::byte acc[kBlock * 8];
    alignas(64) std::byte own[kBlock * 8];
    for (std::size_t r = 0; r < step.sources.size(); ++r) {
      const Place from = step.sources[r].place;
      const Place to = step.destinations[r];
      std::byte* const outcome = at(to, step.chunk, b, offset);
      STORMO_RETURN_IF_ERROR(load(own, from, at(from, step.chunk, b, offset), bytes(n)));
      if (program_.exclusive && r > 0) STORMO_RETURN_IF_ERROR(store(to, outcome, acc, bytes(n)));
      void* const result = acc;
      const Operand terms[] = {{acc, 1}, {own, 1}};
      combine(r == 0 ? std::span(terms).last(1) : std::span(terms), {&result, 1}, n);
      if (!program_.exclusive) STORMO_RETURN_IF_ERROR(store(to, outcome, acc, bytes(n)));
    }
    return {};
  }

  /// The reduction that takes what receive number `index` brings while it comes; null: none.
  static const Instruction* overlapping(int index, std::span<const Instruction> following) {
    for (const Instruction& step : following) {
      if (step.kind != Instruction::Kind::kReduce) return nullptr;
      const bool takes = std::any_of(step.sources.begin(), step.sources.end(),
                                     [index](const Source& s) { return s.received == index; });
      if (takes) return step.overlaps ? &step : nullptr;
    }
    return nullptr;
  }

  /// Elements first to last-1 of the chunk.
  Status reduce_some(const Instruction& step, std::int64_t first, std::int64_t last) {
    return for_pieces(step.chunk, [&](std::size_t b, std::int64_t begin, std::int64_t length) {
      const std::int64_t offset = std::max(begin, first);
      const std::int64_t n = std::min(begin + length, last) - offset;
      return n > 0 ? reduce_piece(step, b, offset, n) : Status();
    });
  }

  /// For the message that holds the chunk from element `offset` on.
  transport::Progress* overlap(const Instruction* reduction, std::int64_t offset) {
    if (reduction == nullptr) return nullptr;
    return &overlaps_.emplace_back(
        size_of(o_.dtype), [this, reduction, offset](std::int64_t begin, std::int64_t end) {
          // only this rank's own memory: nothing can fail
          static_cast<void>(reduce_some(*reduction, offset + begin, offset + end));
        });
  }

  std::size_t padded(plan::ChunkId chunk) const {
    return (bytes(o_.partition.of(chunk, Area::kOut).size()) + 63) / 64 * 64;
  }

  const Program& program_;
  const Operands& o_;
  const Executor& executor_;
  Deadline by_;
  Workspace& work_;
  RemoteOperands far_{work_.fetched};
  std::vector<transport::Outgoing> sends_;
  std::vector<transport::Incoming> receives_;
  std::vector<std::byte*> received_;  // by receive of the last exchange
  std::deque<Overlap> overlaps_;      // of the last exchange
};

}  // namespace

void Layout::assign(std::span<const Buffer> buffers) {
  ends_.clear();
  std::int64_t end = 0;
  for (const Buffer& b : buffers) ends_.push_back(end += b.count);
}

Status execute(const Program& program, const Operands& operands, const Executor& executor,
               Deadline by) {
  Execution execution(program, operands, executor, by);
  const std::span<const Instruction> steps = program.steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Instruction& step = steps[i];
    switch (step.kind) {
      case Instruction::Kind::kSync: STORMO_RETURN_IF_ERROR(executor.barrier(by)); break;
      case Instruction::Kind::kReduce:
        if (step.overlaps) break;
        STORMO_RETURN_IF_ERROR(execution.for_pieces(
            step.chunk, [&](std::size_t b, std::int64_t offset, std::int64_t n) {
              return execution.reduce_piece(step, b, offset, n);
            }));
        break;
      case Instruction::Kind::kCopy: STORMO_RETURN_IF_ERROR(execution.copy_step(step)); break;
      case Instruction::Kind::kPrefix: STORMO_RETURN_IF_ERROR(execution.prefix_step(step)); break;
      case Instruction::Kind::kExchange:
        STORMO_RETURN_IF_ERROR(execution.exchange_step(step, steps.subspan(i + 1)));
        break;
    }
  }
  return {};
}

}  // namespace stormo::comm
