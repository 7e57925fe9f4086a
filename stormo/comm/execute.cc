#include <stormo/comm/execute.h>

#include <cstring>

namespace stormo::comm {
namespace {

class Execution {
 public:
  Execution(const Program& program, const Operands& operands, const Executor& executor, Deadline by)
      : program_(program), o_(operands), executor_(executor), by_(by) {}

  Status run(const Step& step) {
    switch (step.kind) {
      case Step::Kind::kSync: return executor_.meet(by_);
      case Step::Kind::kReduce: reduce_step(step); return {};
      case Step::Kind::kPull: pull_step(step); return {};
      case Step::Kind::kScale: scale_step(step); return {};
      case Step::Kind::kExchange: return exchange_step(step);
    }
    return {};
  }

 private:
  plan::Extent extent(plan::ChunkId chunk) const {
    return plan::chunk_extent(chunk, program_.chunks, o_.layout.count());
  }
  std::byte* at(int local_rank, std::size_t buffer, std::int64_t element) const {
    return o_.memory[static_cast<std::size_t>(local_rank)][buffer] +
           static_cast<std::size_t>(element) * size_of(o_.dtype);
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(o_.dtype);
  }
  double scale(int local_rank) const { return o_.scales[static_cast<std::size_t>(local_rank)]; }

  void reduce_step(const Step& step) {
    std::vector<Operand> sources;
    std::vector<void*> destinations;
    o_.layout.for_pieces(extent(step.chunk),
                         [&](std::size_t b, std::int64_t first, std::int64_t n) {
                           sources.clear();
                           destinations.clear();
                           for (std::size_t i = 0; i < step.sources.size(); ++i) {
                             const int r = step.sources[i];
                             const double s = step.raw[i] ? scale(r) : 1;
                             if (s != 0) sources.push_back({at(r, b, first), s});
                           }
                           for (const int r : step.destinations)
                             destinations.push_back(at(r, b, first));
                           reduce(o_.dtype, o_.how, sources, destinations, n);
                         });
  }

  void pull_step(const Step& step) {
    o_.layout.for_pieces(
        extent(step.chunk), [&](std::size_t b, std::int64_t first, std::int64_t n) {
          std::memcpy(at(o_.local_rank, b, first), at(step.sources[0], b, first), bytes(n));
        });
  }

  void scale_step(const Step& step) {
    const double s = scale(o_.local_rank);
    if (s == 1 || o_.how != Combine::kSum) return;
    o_.layout.for_pieces(extent(step.chunk),
                         [&](std::size_t b, std::int64_t first, std::int64_t n) {
                           const Operand source{at(o_.local_rank, b, first), s};
                           void* destination = at(o_.local_rank, b, first);
                           const std::span<const Operand> sources(&source, s != 0 ? 1 : 0);
                           reduce(o_.dtype, o_.how, sources, {&destination, 1}, n);
                         });
  }

  Status exchange_step(const Step& step) {
    sends_.clear();
    receives_.clear();
    for (const WireMove& m : step.sends) {
      o_.layout.for_pieces(extent(m.chunk), [&](std::size_t b, std::int64_t first, std::int64_t n) {
        sends_.push_back({m.peer, o_.tag, {at(o_.local_rank, b, first), bytes(n)}});
      });
    }
    std::size_t staged = 0;
    for (const WireMove& m : step.receives) {
      if (m.how == plan::Combine::kReduce) staged += bytes(extent(m.chunk).size());
    }
    if (executor_.staging->size() < staged) executor_.staging->resize(staged);
    std::byte* next = executor_.staging->data();
    for (const WireMove& m : step.receives) {
      o_.layout.for_pieces(extent(m.chunk), [&](std::size_t b, std::int64_t first, std::int64_t n) {
        const bool direct = m.how == plan::Combine::kCopy;
        receives_.push_back(
            {m.peer, o_.tag, {direct ? at(o_.local_rank, b, first) : next, bytes(n)}});
        if (!direct) next += bytes(n);
      });
    }
    STORMO_RETURN_IF_ERROR(executor_.wire->exchange(sends_, receives_, by_));
    combine_staged(step);
    return {};
  }

  void combine_staged(const Step& step) {
    const std::byte* next = executor_.staging->data();
    for (const WireMove& m : step.receives) {
      if (m.how == plan::Combine::kCopy) continue;
      o_.layout.for_pieces(extent(m.chunk), [&](std::size_t b, std::int64_t first, std::int64_t n) {
        void* mine = at(o_.local_rank, b, first);
        const Operand sources[] = {{mine, 1}, {next, 1}};
        reduce(o_.dtype, o_.how, sources, {&mine, 1}, n);
        next += bytes(n);
      });
    }
  }

  const Program& program_;
  const Operands& o_;
  const Executor& executor_;
  Deadline by_;
  std::vector<transport::Outgoing> sends_;
  std::vector<transport::Incoming> receives_;
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
  for (const Step& step : program.steps) STORMO_RETURN_IF_ERROR(execution.run(step));
  return {};
}

}  // namespace stormo::comm
