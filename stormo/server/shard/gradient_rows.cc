#include <stormo/server/shard/gradient_rows.h>

#include <array>
#include <string>

#include <stormo/optim/update.h>

namespace stormo::server {

GradientRows rows_of(const PushedGradient& gradient, std::size_t piece) {
  return gradient.rows.empty() ? GradientRows() : gradient.rows[piece];
}

const void* dense_of(const PushedGradient& gradient, std::size_t piece) {
  return gradient.pieces.empty() ? nullptr : gradient.pieces[piece];
}

Status check_rows(std::span<const ShardPiece> pieces, const PushedGradient& gradient) {
  for (std::size_t i = 0; i < gradient.rows.size(); ++i) {
    const GradientRows& rows = gradient.rows[i];
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

}  // namespace stormo::server
