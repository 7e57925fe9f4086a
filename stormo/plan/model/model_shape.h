#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/dtype.h>

namespace stormo::plan {

/// Entries [first, last] of a list, both inclusive.
struct Range {
  int first = 0;
  int last = 0;
  bool operator==(const Range&) const = default;
  int size() const { return last - first + 1; }
};

/// How the ranks of kTensorAxis (plan/project.h) divide a parameter: its dimension `dim` is
/// `blocks` times `units` equal units, and each rank has its share() of the units of every block. A
/// weight of three matrices, one below the other, has three blocks.
struct Split {
  int dim = 0;
  int blocks = 1;
  std::int64_t units = 0;  ///< 0: each rank has the whole
  /// Units of each rank; empty: as even as possible.
  std::vector<std::int64_t> counts = {};
  bool operator==(const Split&) const = default;
};

/// Units [begin, end) of `units`, which ranks divide as evenly as possible.
struct Share {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};
Share share(std::int64_t units, int parts, int index);
/// Those of one of `parts` ranks that divide a parameter so.
Share share(const Split& split, int parts, int index);
/// Whether the counts give each of `parts` ranks units, maybe none, and all together.
bool counts_fit(const Split& split, int parts);

/// A layer that reads a window of places (pixels) for each place of its output, as a convolution or
/// a pooling does, of a map of `channels` x `height` x `width` numbers per sample. Ranks that have
/// parts of the places have their share() of the rows and of the columns of every map. So a part
/// reads places of others, its halo: of a convolution of stride 1 whose output is as large as its
/// input, (kernel - 1) / 2 rows of each neighbour.
struct Window {
  std::int64_t channels = 0, height = 0, width = 0;
  int kernel = 1;  ///< side
  int stride = 1;
  int padding = 0;  ///< rows and columns of zeros at each edge of the map
  bool operator==(const Window&) const = default;
};
/// Rows of the output of a map of `rows` rows, or columns of columns; less than 1: none.
std::int64_t rows_out(const Window& window, std::int64_t rows);
/// Rows of a map of `rows` rows that a part reads for its share of the output. Empty only where it
/// reads nothing but padding.
Share rows_read(const Window& window, std::int64_t rows, int parts, int index);
/// What two ranges have in common; of size 0 if that is nothing.
Share common(const Share& a, const Share& b);

/// What one of the ranks that compute parts of a graph of segments sends to another of each sample
/// (plan/model/segment_graph.h).
struct StateCrossing {
  int from = 0, to = 0;       ///< coordinates on kTensorAxis
  std::int64_t elements = 0;  ///< of all states together
  bool operator==(const StateCrossing&) const = default;
};

struct ParameterShape {
  std::string name;           ///< "block0.qkv.weight"
  std::int64_t elements = 0;  ///< at least 0
  DType dtype = DType::kFloat32;
  bool trainable = true;  ///< requires a gradient
  bool sparse = false;  ///< a table of which a step uses few rows: its gradient has only those rows
  bool elsewhere = false;  ///< in the plan of one rank: only ranks of other stages have it
  Split split = {};        ///< in the plan of one rank, `elements` counts its slice only
  /// Its first dimension, if it has several: a matrix of so many rows. Only with a codec that has
  /// factors; else 0.
  std::int64_t rows = 0;
  bool operator==(const ParameterShape&) const = default;
};

/// Whether it has a gradient, and each rank of kTensorAxis has the whole of it.
inline bool is_trained_whole(const ParameterShape* p) {
  return p->trainable && p->split.units == 0;
}

/// What the ranks of kTensorAxis add up inside of a segment that they compute together: one
/// all-reduce for each entry, which is its number of elements per sample. Where the ranks have
/// parts of the positions (StepPlan::sequence_parallel) it is a reduce-scatter, and in the other
/// direction an all-gather of as many elements belongs to it.
struct InnerSums {
  std::vector<std::int64_t> forward;  ///< of terms of activations
  /// Of terms of their gradients; none of them where nothing in front of it is trained.
  std::vector<std::int64_t> backward;
  std::vector<std::int64_t> loss;  ///< to compute the loss of its output
  bool operator==(const InnerSums&) const = default;
};

/// All of them, with the words of the text form.
std::array<std::pair<const char*, const std::vector<std::int64_t>*>, 3> named(
    const InnerSums& sums);

/// The smallest part of a model that a plan computes by itself: a layer or a block of layers.
struct SegmentShape {
  std::string name;  ///< "block0"
  std::vector<ParameterShape> parameters;
  std::int64_t flops_per_sample = 0;  ///< forward; 0 when unknown
  /// Parameters of earlier segments that its forward also reads, by their number in the model.
  std::vector<int> borrowed;
  int stage = 0;        ///< of a pipeline: the ranks with this coordinate on kStageAxis compute it
  int heads = 0;        ///< of attention; the ranks of kTensorAxis divide them evenly
  InnerSums sums = {};  ///< only with kTensorAxis
  bool splits_output = false;  ///< each rank of kTensorAxis has a part of its output
  /// Of a sample, if ranks can have parts of them; only with kContextAxis or
  /// StepPlan::sequence_parallel. 0: they cannot.
  std::int64_t positions = 0;
  /// Elements per sample of the keys and values of attention, which the ranks of kContextAxis
  /// exchange.
  std::int64_t keys = 0;
  /// What layers read of maps of which the ranks of kRowsAxis and kColumnsAxis have parts, in the
  /// order of forward; only with these axes.
  std::vector<Window> windows = {};
  /// Of which the ranks of kTensorAxis have parts of the rows; only with this axis.
  std::vector<Window> split_windows = {};
  /// What the ranks of kTensorAxis send each other where each computes a part of a graph: exchange
  /// by exchange, in the order of forward. The last one gives every rank the output. In backward
  /// the gradients of the others come back. Only with this axis.
  std::vector<std::vector<StateCrossing>> state_crossings = {};
  /// Channels of each batch normalisation over the places of all ranks; only with kRowsAxis or
  /// kColumnsAxis.
  std::vector<std::int64_t> norms = {};
  /// Elements per sample that the ranks of kRowsAxis and kColumnsAxis add up in forward: the input
  /// is the last one of which they have parts, the output is whole. One segment has that.
  std::int64_t spatial_all_reduce = 0;
  bool operator==(const SegmentShape&) const = default;
};

/// The properties of a model that strategies use. A torch::nn::Module that is not a Chain is one
/// segment. Parameters are numbered from 0 over all segments, in the order of segments.
struct ModelShape {
  std::vector<SegmentShape> segments;
  bool operator==(const ModelShape&) const = default;
};

/// In which ways ranks compute a model together.
struct ParallelForms {
  bool slices = false;     ///< kTensorAxis
  bool positions = false;  ///< kContextAxis, or kTensorAxis with StepPlan::sequence_parallel
  bool places = false;     ///< kRowsAxis, kColumnsAxis
  bool factors = false;    ///< gradients travel in a codec with factors (ParameterShape::rows)
};
/// The model without what it says of ways in which no ranks compute it, or add up gradients.
ModelShape without_unused_forms(ModelShape model, const ParallelForms& how);

/// The first segments, whose input is in parts where ranks have parts of the places; 0: the model
/// has no spatial_all_reduce.
int segments_of_places(const ModelShape& model);

/// Number of parameters of all segments; at most INT_MAX by the limits of the text form.
int num_parameters(const ModelShape& model);
/// Number of elements of all parameters together.
std::int64_t num_elements(const SegmentShape& segment);
std::int64_t num_elements(const ModelShape& model);
/// All segments.
inline Range all_segments(const ModelShape& model) {
  return {0, static_cast<int>(model.segments.size()) - 1};
}
inline Range all_parameters(const ModelShape& model) { return {0, num_parameters(model) - 1}; }
/// The parameters that the segments own; empty (size 0) when they have none.
Range parameters_of(const ModelShape& model, Range segments);
/// All parameters, in order; they point into `model`.
std::vector<const ParameterShape*> flatten(const ModelShape& model);
/// By segment: the parameters that it reads, its own and the borrowed ones, ascending.
std::vector<std::vector<int>> parameters_read(const ModelShape& model);

}  // namespace stormo::plan
