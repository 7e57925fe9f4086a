#include <stormo/server/shard/shard_update.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

namespace stormo::server {
namespace {

constexpr std::int64_t kBlockOfProgress = 8192;  // elements between two calls of Progress

/// Elements [begin, end) of a piece, at most kBlockOfProgress, as a range of its own. `from`:
/// arrays that are read in the place of `arrays`; null: none.
struct Block {
  Block(const ShardPiece& piece, const PieceArrays& arrays,
        std::span<const optim::GradientTerm> gradient, std::int64_t begin, std::int64_t end,
        const PieceArrays* from = nullptr)
      : offset(static_cast<std::size_t>(begin) * size_of(piece.dtype)) {
    const auto at = [this](auto* p) { return p == nullptr ? nullptr : p + offset; };
    for (const optim::GradientTerm& term : gradient) {
      terms[count++] = {.data = at(static_cast<const std::byte*>(term.data)), .scale = term.scale};
    }
    range = {.begin = 0,
             .end = end - begin,
             .dtype = piece.dtype,
             .weights = at(arrays.weights),
             .gradients = std::span(terms).first(count),
             .gradient_dtype = piece.dtype};
    for (std::size_t s = 0; s < optim::kMaxSlots; ++s) range.slots[s] = at(arrays.slots[s]);
    if (from == nullptr) return;
    range.old_weights = at(from->weights);
    for (std::size_t s = 0; s < optim::kMaxSlots; ++s) range.old_slots[s] = at(from->slots[s]);
  }
  Block(const Block&) = delete;
  std::size_t bytes() const { return static_cast<std::size_t>(range.end) * size_of(range.dtype); }

  std::size_t offset;  // bytes
  std::array<optim::GradientTerm, kMaxTerms> terms{};
  std::size_t count = 0;
  optim::UpdateRange range;
};

/// Calls body(begin, end) for each block of each range.
template <class Body>
void for_each_block(std::span<const ChangedRange> ranges, const Body& body) {
  for (const ChangedRange& range : ranges) {
    for (std::int64_t begin = range.begin; begin < range.end; begin += kBlockOfProgress) {
      body(begin, std::min(begin + kBlockOfProgress, range.end));
    }
  }
}
template <class Body>
void for_each_block(const ShardPiece& piece, const Body& body) {
  const ChangedRange whole{.begin = 0, .end = piece.elements()};
  for_each_block(std::span(&whole, 1), body);
}

// See protocol::DelayCompensation. `mean_square`: of the piece; null unless it is adaptive.
template <class T>
void compensate(const Block& block, const PieceGradient& gradient, std::byte* mean_square,
                std::span<double> memory) {
  T* g = reinterpret_cast<T*>(memory.data());
  optim::sum_gradients(block.range, g);
  const T* w = static_cast<const T*>(block.range.old_weights);
  const T* v = reinterpret_cast<const T*>(gradient.pulled + block.offset);
  const T lambda = static_cast<T>(gradient.delay.lambda);
  if (mean_square == nullptr) {
    for (std::int64_t i = 0; i < block.range.end; ++i) g[i] += lambda * g[i] * g[i] * (w[i] - v[i]);
    return;
  }
  T* m = reinterpret_cast<T*>(mean_square + block.offset);
  const T decay = static_cast<T>(gradient.delay.decay);
  const T epsilon = static_cast<T>(protocol::DelayCompensation::kEpsilon);
  for (std::int64_t i = 0; i < block.range.end; ++i) {
    m[i] = decay * m[i] + (1 - decay) * g[i] * g[i];
    g[i] += lambda / std::sqrt(m[i] + epsilon) * g[i] * g[i] * (w[i] - v[i]);
  }
}

/// Elements [begin, end).
template <class T>
void exchange_range(std::int64_t begin, std::int64_t end, double alpha, const std::byte* own,
                    const std::byte* from, std::byte* to, std::byte* moved) {
  const auto rate = static_cast<T>(alpha);
  const T* x = reinterpret_cast<const T*>(own);
  const T* c = reinterpret_cast<const T*>(from);
  T* new_c = reinterpret_cast<T*>(to);
  T* new_x = reinterpret_cast<T*>(moved);
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = rate * (x[i] - c[i]);
    new_c[i] = c[i] + d;
    new_x[i] = x[i] - d;
  }
}

}  // namespace

void update_piece(const optim::Options& options, optim::UpdateStep step, const ShardPiece& piece,
                  const PieceGradient& gradient, std::span<const ChangedRange> ranges,
                  const PieceArrays& from, PieceArrays& to, const Progress& progress) {
  alignas(64) std::array<double, kBlockOfProgress> compensated;
  const bool has_gradient = !gradient.terms.empty();
  const bool has_norms = has_gradient && optim::needs_norms(options.kind);
  to.updates = from.updates + (has_gradient ? 1 : 0);
  step.number = to.updates;
  optim::SquareSums whole;
  for_each_block(ranges, [&](std::int64_t begin, std::int64_t end) {
    Block block(piece, to, gradient.terms, begin, end, &from);
    const auto copy = [&](const std::byte* source, std::byte* target) {
      if (source != nullptr)
        std::memcpy(target + block.offset, source + block.offset, block.bytes());
    };
    copy(from.mean_square, to.mean_square);
    if (!has_gradient) {
      copy(from.weights, to.weights);
      for (std::size_t s = 0; s < optim::kMaxSlots; ++s) copy(from.slots[s], to.slots[s]);
    }
    if (gradient.delay.lambda != 0 && has_gradient) {
      const auto run = piece.dtype == DType::kFloat32 ? compensate<float> : compensate<double>;
      run(block, gradient, to.mean_square, compensated);
      block.terms[0] = {.data = compensated.data(), .scale = 1};
      block.range.gradients = std::span(block.terms).first(1);
    }
    if (has_norms) {
      const optim::SquareSums sums = optim::prepare(options, step, block.range);
      whole.weights += sums.weights;
      whole.direction += sums.direction;
    } else if (has_gradient) {
      optim::update(options, step, block.range);
    }
    progress();
  });
  if (!has_norms) return;
  step.trust_ratio = optim::trust_ratio(options, whole);
  for_each_block(ranges, [&](std::int64_t begin, std::int64_t end) {
    optim::update(options, step, Block(piece, to, gradient.terms, begin, end, &from).range);
    progress();
  });
}

void exchange_piece(const ShardPiece& piece, double alpha, const std::byte* own,
                    const std::byte* from, std::byte* to, std::byte* moved,
                    const Progress& progress) {
  const auto range =
      piece.dtype == DType::kFloat32 ? exchange_range<float> : exchange_range<double>;
  for_each_block(piece, [&](std::int64_t begin, std::int64_t end) {
    range(begin, end, alpha, own, from, to, moved);
    progress();
  });
}

Status check_rows(std::span<const ShardPiece> pieces, const PushedGradient& gradient) {
  for (std::size_t i = 0; i < gradient.pieces.size(); ++i) {
    const GradientRows& rows = gradient.pieces[i].rows;
    if (rows.row_length == 0) continue;
    const std::string where = "piece " + std::to_string(i) + " of the shard, of parameter " +
                              std::to_string(pieces[i].parameter);
    const std::int64_t elements = pieces[i].elements();
    if (rows.row_length < 0 || elements % rows.row_length != 0) {
      return invalid_argument(
          where + ", has " + std::to_string(elements) + " elements, which are not whole rows of " +
          std::to_string(rows.row_length) + "; give the row length of the parameter");
    }
    const std::int64_t count = elements / rows.row_length;
    for (const std::int64_t row : rows.indices) {
      if (row >= 0 && row < count) continue;
      return invalid_argument(where + ", has " + std::to_string(count) +
                              " rows, and the gradient has row " + std::to_string(row) +
                              "; indices are from 0, and count from the first row of the piece");
    }
  }
  return {};
}

void add_rows(const ShardPiece& piece, const GradientRows& rows, double scale, std::byte* to,
              const Progress& progress) {
  const auto row_bytes = static_cast<std::size_t>(rows.row_length) * size_of(piece.dtype);
  const std::byte* values = static_cast<const std::byte*>(rows.values);
  for (const std::int64_t row : rows.indices) {
    std::byte* const sum = to + static_cast<std::size_t>(row) * row_bytes;
    const std::array<optim::GradientTerm, 2> terms = {
        {{.data = sum}, {.data = values, .scale = scale}}};
    (void)optim::sum_gradients({.begin = 0,
                                .end = rows.row_length,
                                .dtype = piece.dtype,
                                .gradients = terms,
                                .gradient_dtype = piece.dtype},
                               sum);
    values += row_bytes;
    progress();
  }
}

void clear_piece(const ShardPiece& piece, std::span<const ChangedRange> ranges, std::byte* to,
                 const Progress& progress) {
  for_each_block(ranges, [&](std::int64_t begin, std::int64_t end) {
    const Block block(piece, {.weights = to}, {}, begin, end);
    std::memset(block.range.weights, 0, block.bytes());
    progress();
  });
}

void add_piece(const ShardPiece& piece, std::span<const optim::GradientTerm> terms, std::byte* to,
               const Progress& progress) {
  for_each_block(piece, [&](std::int64_t begin, std::int64_t end) {
    const Block block(piece, {}, terms, begin, end);
    (void)optim::sum_gradients(block.range, to + block.offset);
    progress();
  });
}

}  // namespace stormo::server
