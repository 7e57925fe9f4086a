#pragma once

#include <cstdint>
#include <string>
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

struct ParameterShape {
  std::string name;           ///< "block0.qkv.weight"
  std::int64_t elements = 0;  ///< at least 0
  DType dtype = DType::kFloat32;
  bool trainable = true;  ///< requires a gradient
  bool sparse = false;  ///< a table of which a step uses few rows: its gradient has only those rows
  bool elsewhere = false;  ///< in the plan of one rank: only ranks of other stages have it
  bool operator==(const ParameterShape&) const = default;
};

/// The smallest part of a model that a plan computes by itself: a layer or a block of layers.
struct SegmentShape {
  std::string name;  ///< "block0"
  std::vector<ParameterShape> parameters;
  std::int64_t flops_per_sample = 0;  ///< forward; 0 when unknown
  /// Parameters of earlier segments that its forward also reads, by their number in the model.
  std::vector<int> borrowed;
  int stage = 0;  ///< of a pipeline: the ranks with this coordinate on kStageAxis compute it
  bool operator==(const SegmentShape&) const = default;
};

/// The properties of a model that strategies use. A torch::nn::Module that is not a Chain is one
/// segment. Parameters are numbered from 0 over all segments, in the order of segments.
struct ModelShape {
  std::vector<SegmentShape> segments;
  bool operator==(const ModelShape&) const = default;
};

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
