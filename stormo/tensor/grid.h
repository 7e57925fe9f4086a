#pragma once

#include <cstdint>

#include <torch/types.h>

#include <stormo/comm/communicator.h>
#include <stormo/plan/model/model_shape.h>
#include <stormo/plan/project.h>

// Maps of places (pixels) of which several ranks have parts (spatial cut, local connectivity). N.
// Dryden et al., "Improving strong-scaling of CNN training by exploiting finer-grained
// parallelism", IPDPS 2019.
namespace stormo::tensor {

/// The ranks that have parts of one dimension of a map, its rows or its columns. Rank i has the
/// plan::share() i of them.
class Line {
 public:
  /// One rank, which has all of them.
  Line() = default;
  /// `ranks` is borrowed.
  explicit Line(comm::Communicator& ranks) : ranks_(&ranks), part_{ranks.rank(), ranks.size()} {}
  /// The last rank of `parts` by itself, to which the others give zeros.
  static Line alone(int parts);

  const plan::Part& part() const { return part_; }
  /// This rank's share of `extent` rows or columns.
  plan::Share share(std::int64_t extent) const {
    return plan::share(extent, part_.parts, part_.index);
  }
  /// Null: the rank is alone.
  comm::Communicator* ranks() const { return ranks_; }

 private:
  comm::Communicator* ranks_ = nullptr;
  plan::Part part_;
};

/// The ranks that have parts of the places of each image: a grid over plan::kRowsAxis and
/// plan::kColumnsAxis.
class Grid {
 public:
  /// All is borrowed. A dimension that is not cut has a Line of one rank. `all`: the ranks of the
  /// grid together, row by row.
  Grid(Line rows, Line columns, comm::Communicator& all)
      : rows_(rows), columns_(columns), all_(&all) {}
  /// The last rank of a grid by itself. To measure what such a rank computes and keeps.
  static Grid alone(int rows, int columns) { return Grid(Line::alone(rows), Line::alone(columns)); }

  const Line& rows() const { return rows_; }
  const Line& columns() const { return columns_; }
  /// Of the whole grid.
  int size() const { return rows_.part().parts * columns_.part().parts; }
  /// Null: the rank is alone.
  comm::Communicator* all() const { return all_; }

  /// This rank's places of images [B, C, H, W]; a copy, so the images need not stay. Throws Error
  /// (kInvalidArgument) unless every rank has some.
  torch::Tensor take(const torch::Tensor& images) const;

 private:
  Grid(Line rows, Line columns) : rows_(rows), columns_(columns) {}

  Line rows_, columns_;
  comm::Communicator* all_ = nullptr;  // null: alone
};

/// What this rank reads of a map for its share of a layer's output: of `x`, [B, C, h, w], which is
/// its share of the map, with the rows and columns of others (halos), and zeros where the window
/// goes over an edge of the map. A layer with this window, but without padding, computes the share
/// from it. A collective where a place crosses a boundary, also in backward: there each gradient
/// goes to the rank that has the place, and is added up. Copies `x` once. Throws Error, also where
/// `x` is no share of the map that `window` states.
///
/// Sends each place once to each rank that reads it: of a convolution of stride 1 that keeps the
/// size, (kernel - 1) / 2 rows to each neighbour above and below, then as many columns, with the
/// rows of the halo, to the left and to the right. In backward as much comes back.
torch::Tensor halo_exchange(const torch::Tensor& x, const plan::Window& window, const Line& rows,
                            const Line& columns);

/// A collective: the sum of all ranks' `x`, a contiguous tensor, in its memory. In backward the
/// gradients of all ranks are added up, so where these are equal, as behind a sum, each is
/// multiplied by the number of ranks, and nothing is sent. So the average of the ranks' gradients
/// of parameters in front of it is that of one process. Throws Error.
torch::Tensor sum_over_places(const torch::Tensor& x, const Grid& grid);

}  // namespace stormo::tensor
