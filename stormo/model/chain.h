#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/plan/step_plan.h>
#include <stormo/tensor/context.h>
#include <stormo/tensor/grid.h>
#include <stormo/tensor/split.h>

namespace stormo::model {

/// How ranks compute a segment together, each with its slices of the parameters (tensor
/// parallelism).
struct SplitForm {
  std::map<std::string, plan::Split> parameters;  ///< by name; others are whole on every rank
  int heads = 0;               ///< of attention, which the ranks divide evenly; 0: no attention
  plan::InnerSums sums;        ///< what forward() adds up over the ranks, and its backward
  bool splits_output = false;  ///< each rank has a part of the output, in its last dimension
  /// What it reads of maps of whose rows each rank has a part.
  std::vector<plan::Window> windows = {};
  /// What ranks send each other where each computes a part of a graph (plan::SegmentShape).
  std::vector<std::vector<plan::StateCrossing>> state_crossings = {};
};

/// How ranks compute a segment that have parts of the positions of each sample (context
/// parallelism). With sequence parallelism the ranks of a TensorParallelGroup have parts of them,
/// too, but not between begin_split() and end_split(), where attention is.
struct ContextForm {
  /// Of a sample, in dimension 1 of input and output; 0: forward() needs all of them.
  std::int64_t positions = 0;
  std::int64_t keys = 0;  ///< elements per sample of the keys and values of its attention
};

/// How ranks compute a segment that have parts of the places of each image (spatial cut).
struct PlaceForm {
  /// What it reads of maps, in the order of forward(); the last segment that has parts of the
  /// places states the map that it adds up over, too.
  std::vector<plan::Window> windows;
  std::vector<std::int64_t> norms;  ///< channels of each batch normalisation over all places
  /// Of the last such segment: elements per sample that the ranks add up. What comes behind them is
  /// whole. 0: others have parts, too, or none has.
  std::int64_t sum = 0;
};

/// The smallest part of a model that a plan computes by itself: one tensor in, one tensor out.
class Segment : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  virtual torch::Tensor forward(torch::Tensor x) = 0;
  /// Multiply-adds count as two; per sample; 0 when unknown.
  virtual std::int64_t flops_per_sample() const { return 0; }
  /// Parameters of other segments that forward() reads.
  virtual std::vector<torch::Tensor> borrowed_parameters() const { return {}; }
  /// Without split parameters each of the ranks computes the whole segment.
  virtual SplitForm split_form() const { return {}; }
  /// Without it the segment needs whole samples.
  virtual ContextForm context_form() const { return {}; }
  /// Without it the segment needs whole images.
  virtual PlaceForm place_form() const { return {}; }
  /// forward() computes this rank's places from now on, where the segment has parts of them. Null:
  /// all again. Borrowed.
  void compute_places_with(const tensor::Grid* ranks) { grid_ = ranks; }
  /// forward() computes this rank's positions from now on: its input has no others. Null: all
  /// again. Borrowed.
  void compute_positions_with(const tensor::ContextGroup* ranks) { context_ = ranks; }
  /// forward() computes this rank's part from now on: the parameters that split_form() names are
  /// slices. Null: the whole again. Borrowed.
  void compute_with(const tensor::TensorParallelGroup* ranks) { ranks_ = ranks; }

 protected:
  /// The ranks that compute this segment together; null: it is computed here alone.
  const tensor::TensorParallelGroup* ranks() const { return ranks_; }
  /// The ranks that have the positions of a sample; null: all are here.
  const tensor::ContextGroup* context() const { return context_; }
  /// The ranks that have parts of the places of an image; null: all are here.
  const tensor::Grid* grid() const { return grid_; }
  /// The numbers of the positions that are here, outside of begin_split() and end_split(), where
  /// the input of this rank has `count` of them: int64, [count]. Undefined: they are all, in order.
  torch::Tensor positions(std::int64_t count) const;

 private:
  const tensor::ContextGroup* context_ = nullptr;
  const tensor::TensorParallelGroup* ranks_ = nullptr;
  const tensor::Grid* grid_ = nullptr;
};

/// While it lives, models that this thread makes get no values but for the first `kept` bytes:
/// parameters have sizes, but no memory. What has parts of such a model makes the values of one
/// segment at a time (Chain::make_values()), so that no process needs memory for all of them. They
/// are the values that the model would have got at once, bit for bit.
class ValuesLater {
 public:
  /// Segments keep their values as long as those of all models made have fewer than `kept` bytes.
  explicit ValuesLater(std::int64_t kept = 0);
  ~ValuesLater();
  ValuesLater(const ValuesLater&) = delete;
  ValuesLater& operator=(const ValuesLater&) = delete;

 private:
  std::optional<std::int64_t> before_;
};

/// A model as a chain of Segments, written for one device, that is also a plain module:
/// parameters() and named_parameters() are those of the segments, in order; forward() runs all of
/// them.
class Chain : public torch::nn::Module {
 public:
  /// Runs all segments.
  torch::Tensor forward(torch::Tensor x);
  const std::vector<std::shared_ptr<Segment>>& segments() const { return segments_; }
  /// Names of parameters and buffers of a segment begin with its name and a point.
  const std::vector<std::string>& segment_names() const { return names_; }
  plan::ModelShape shape() const;
  /// The same, with how ranks can compute it together (Segment::split_form(), context_form(),
  /// place_form()).
  plan::ModelShape split_shape() const;
  /// Segment::compute_with() of all segments.
  void compute_with(const tensor::TensorParallelGroup* ranks);
  /// Segment::compute_positions_with() of all segments.
  void compute_positions_with(const tensor::ContextGroup* ranks);
  /// Segment::compute_places_with() of all segments.
  void compute_places_with(const tensor::Grid* ranks);

  /// Whether the parameters of a segment have never had values; see ValuesLater.
  bool lacks_values(std::size_t segment) const { return origins_[segment].make != nullptr; }
  bool lacks_values() const;
  /// Makes the values of the parameters of a segment that lacks them. Its memory is needed twice
  /// meanwhile.
  void make_values(std::size_t segment);
  /// Of all segments that lack them.
  void make_values();
  /// Memory for the parameters of a segment that lacks values; the caller writes them.
  void give_memory(std::size_t segment);
  using torch::nn::Module::to;
  /// Also of a model that lacks values.
  void to(torch::Dtype type, bool non_blocking = false) override;
  void to(torch::Device device, torch::Dtype type, bool non_blocking = false) override;

 protected:
  explicit Chain(std::string name) : torch::nn::Module(std::move(name)) {}
  /// Appends a segment that has its values, also under ValuesLater.
  void append(std::string name, std::shared_ptr<Segment> segment);
  /// Appends what `make` makes, and returns it. `make` may be called a second time: it depends on
  /// nothing that changes but libtorch's random generator. Parameters that it borrows are owned by
  /// earlier segments. Under ValuesLater it keeps its values where several parameters share memory.
  template <std::invocable Make>
  auto append(std::string name, Make make) {
    Origin origin = origin_of(make);
    auto segment = make();
    append(std::move(name), segment);
    leave_out_values(std::move(origin));
    return segment;
  }

 private:
  /// How a segment is made that lacks values; else empty.
  struct Origin {
    std::function<std::shared_ptr<Segment>()> make = {};
    torch::Tensor generator = {};  ///< the state of libtorch's generator before
  };
  static Origin origin_of(std::function<std::shared_ptr<Segment>()> make);
  void leave_out_values(Origin origin);

  std::vector<std::string> names_;
  std::vector<std::shared_ptr<Segment>> segments_;
  std::vector<Origin> origins_;
};

/// For a training loop of your own: every segment of `model` computes with `ranks` from now on, and
/// each split parameter is replaced by this rank's slice. The parameters must be equal on all ranks
/// before, and have no gradients. `ranks` is borrowed as long as the model computes. In backward a
/// slice gets the gradient of the slice, and what is whole gets the same gradient on all ranks. No
/// collective. The Trainer does this by itself (strategy.tensor).
void parallelize(Chain& model, const tensor::TensorParallelGroup& ranks);

}  // namespace stormo::model
