#pragma once

#include <array>
#include <functional>
#include <span>
#include <tuple>

#include <stormo/base/dtype.h>
#include <stormo/optim/update.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/optimizer/tensor_update.h>
#include <stormo/train/state/tensor_piece.h>

namespace stormo::train {

/// The elements [begin, end) of one parameter, in C order, that this rank updates.
struct OwnedRange {
  std::int64_t begin = 0, end = 0;
  torch::Tensor weights =
      {};  ///< memory of the end - begin contiguous weights; undefined: the parameter's own
  /// False where another rank of a SumOverRanks has the same elements: only its norms are summed.
  bool counts = true;
};

/// The gradient of an owned range, in the memory of one or several ranks: each source points at its
/// first element.
struct RangeGradient {
  std::size_t parameter = 0;  ///< index into parameters()
  std::span<const optim::GradientTerm> sources;
  DType dtype = DType::kFloat32;  ///< of the weights; or, when those are float32, a 16-bit type
};

/// The update of one parameter, for who performs it in parts: `update` takes the piece with any
/// begin and end inside of its own. Borrows the gradients.
struct RangeUpdate {
  std::size_t parameter = 0;
  optim::UpdateRange piece;
  optim::UpdateStep step;
  optim::UpdateFunction update = nullptr;
};

/// The same as one tensor, on the device of the parameters.
struct TensorGradient {
  std::size_t parameter = 0;  ///< index into parameters()
  torch::Tensor values;       ///< contiguous, as many as the range has
};

/// Returns elements [begin, end) of the checkpoint's tensor `name`; an undefined tensor if there is
/// none of that name.
using ReadState = std::function<Result<torch::Tensor>(const std::string& name, std::int64_t begin,
                                                      std::int64_t end)>;

/// A collective: sums the numbers elementwise over all ranks that own ranges of the same
/// parameters.
using SumOverRanks = std::function<Status(std::span<double>)>;

/// Optimizer whose update is one pass over memory (stormo/optim), on one range of each parameter.
/// With replicas a rank owns all elements, with host-shared or sharded parameters a slice or shard.
/// State exists only for owned elements. Large updates use libtorch's intra-op threads. Weights are
/// float32 or float64. 16-bit parameters get float32 master weights, which are part of the state;
/// the parameters are rounded copies of them. A sparse gradient updates only the rows that it has,
/// if the rule leaves other rows unchanged (optim::leaves_rest_alone); else it is made dense.
/// Parameters may have any strides.
///
/// Where the parameters are on a device other than the CPU, updates are operations of libtorch
/// there (tensor_update.h), and so is the state. It has the same names and values in checkpoints.
///
/// Muon updates hidden matrices by such operations everywhere, and from autograd's gradients: they
/// are owned as a whole. Other parameters have AdamW.
class FusedOptimizer final : public Optimizer {
 public:
  /// `owned` has one range for each parameter; empty: all elements of all parameters. `sum` is
  /// needed if other ranks own the rest. Throws Error for parameters that are not floating point
  /// on one device, and for a part of a matrix that Muon updates.
  FusedOptimizer(const OptimizerOptions& options, std::vector<NamedParameter> parameters,
                 std::vector<OwnedRange> owned = {}, SumOverRanks sum = {});

  /// Uses the owned ranges of autograd's gradients. Of a rule that needs norms (optim::needs_norms)
  /// it is one collective if `sum` was given, of two numbers for each of the parameters.
  Status step(const StepRate& rate, std::size_t first, std::size_t last) override;
  using Optimizer::step;
  /// Uses the given gradients, at most one for each parameter; parameters without one are not
  /// changed. A gradient that is missing on one rank must be missing on all ranks that own a part
  /// of its parameter. RangeGradients lie in host memory.
  Status step(const StepRate& rate, std::span<const RangeGradient> gradients);
  Status step(const StepRate& rate, std::span<const TensorGradient> gradients);
  /// Counts such a step, and leaves its updates to the caller. Of contiguous parameters in host
  /// memory, and of rules that need no norms.
  Result<std::vector<RangeUpdate>> begin_step(const StepRate& rate,
                                              std::span<const RangeGradient> gradients);

  /// The 2-norm over the owned ranges of all ranks, summed in double precision. A collective if
  /// `sum` was given.
  Result<double> gradient_norm() override;
  Result<double> gradient_norm(std::span<const RangeGradient> gradients);
  /// The sum of squares of the gradients of owned ranges, of the parameters whose name counts. Of
  /// this rank alone, so not a collective.
  double gradient_squares(const std::function<bool(const std::string&)>& counts);

  /// Only if this rank owns all elements; else use state_pieces(). Tensors are shared, not copied.
  std::map<std::string, torch::Tensor> state() const override;
  Status load_state(const std::map<std::string, torch::Tensor>& state) override;

  /// What updates change, of all parameters; the tensors share memory.
  struct Values {
    /// By parameter: the owned elements; of 16-bit parameters the master weights.
    std::vector<torch::Tensor> weights;
    /// By slot, then by parameter; undefined where its rule has fewer (optim::rules_of).
    std::vector<std::vector<torch::Tensor>> slots;
    std::vector<torch::Tensor> outer_momentum;  ///< by parameter, if it is kept
  };
  /// From now on the state has a momentum for an outer optimizer, too, which begins with 0. Updates
  /// leave it alone. A checkpoint without it is one of a run without outer optimizer.
  void keep_outer_momentum() { keeps_outer_ = true; }
  /// Gives every parameter its state, which it has otherwise from its first step on.
  Values values();
  /// From now on the state lies in these tensors, by slot, then by parameter, of the types and
  /// sizes of values().
  void place_slots(const std::vector<std::vector<torch::Tensor>>& slots);
  /// After a change of values(): 16-bit parameters get their master weights, rounded.
  void round_masters();
  /// Steps done, by parameter; rules that count steps need them.
  std::vector<std::int64_t> steps() const;
  void set_steps(std::span<const std::int64_t> steps);

  /// State of the owned ranges; a parameter has none before its first step. A number for a whole
  /// parameter ("step") is given by the owner of its first element.
  std::vector<TensorPiece> state_pieces() const;
  /// Reads the state of the owned ranges. On failure nothing is changed, as in load_state(map).
  Status load_state(const ReadState& read);

  const OptimizerOptions& options() const { return options_; }
  const std::vector<OwnedRange>& owned() const { return owned_; }

 private:
  struct State {
    std::array<torch::Tensor, optim::kMaxSlots> slots;
    torch::Tensor master;          // of 16-bit parameters
    torch::Tensor outer_momentum;  // if it is kept
    std::int64_t steps = 0;
    bool begun = false;
    /// The weights and gradients that check_types() has let pass.
    std::tuple<torch::ScalarType, std::int64_t, DType> checked{torch::ScalarType::Undefined, 0, {}};
  };
  /// One parameter's part of a step, with what keeps its pointers valid.
  struct Work {
    std::size_t parameter = 0;
    std::int64_t first = 0;  // element of the owned range
    std::int64_t count = 0;
    optim::UpdateRange piece;
    optim::UpdateStep step;
    optim::GradientTerm source;  // when the gradient is autograd's
    torch::Tensor weights, gradient;
    torch::Tensor strided;  // to which weights are copied back
  };

  std::int64_t numel(std::size_t i) const { return owned_[i].end - owned_[i].begin; }
  bool on_host() const { return parameters_.empty() || parameters_.front().tensor.is_cpu(); }
  const OptimizerOptions& rule_of(std::size_t i) const {
    return parameters_[i].hidden ? options_ : rest_;
  }
  /// Whether it is one that Muon updates.
  bool is_matrix(std::size_t i) const { return rule_of(i).kind == OptimizerOptions::Kind::kMuon; }
  std::vector<TensorGradient> autograd_gradients(std::size_t first, std::size_t last) const;
  TensorUpdate tensors_to_update(const TensorGradient& gradient);
  Status step_by_tensors(const StepRate& rate, std::span<const TensorGradient> gradients,
                         std::size_t first, std::size_t last);
  double squares_on_device(const std::function<bool(std::size_t)>& counts) const;
  /// `mine` are this rank's sums, each of one of the `parameters`.
  Result<std::vector<double>> trust_ratios(std::span<const std::size_t> parameters,
                                           std::span<const optim::SquareSums> mine,
                                           std::size_t first, std::size_t last) const;
  std::vector<Work> autograd_work(std::size_t first, std::size_t last, bool with_matrices);
  bool takes_rows(std::size_t i, const torch::Tensor& gradient) const;
  void add_rows(std::size_t i, const torch::Tensor& gradient, std::vector<Work>& works) const;
  std::vector<Work> range_work(std::span<const RangeGradient> gradients);
  Status check_types(const Work& work) const;
  Status check_rule() const;  ///< kInvalidArgument for L-BFGS
  void check_parameter(std::size_t i) const;
  torch::Tensor zero_state(std::size_t i) const;
  void create_state(std::size_t i);
  torch::Tensor owned_weights(std::size_t i) const;
  void add_weights(Work& work);
  /// Points them at weights and state, and counts the step.
  Status begin(std::vector<Work>& works, const StepRate& rate);
  /// `works` are of the parameters [first, last).
  Status run(std::vector<Work>& works, const StepRate& rate, std::size_t first, std::size_t last);
  Status find_trust_ratios(std::vector<Work>& works, std::size_t first, std::size_t last);
  double gradient_squares(std::vector<Work>& works,
                          const std::function<bool(std::size_t)>& counts) const;
  double squares_of_autograd(const std::function<bool(std::size_t)>& counts);
  Result<double> norm_of(double squares) const;
  std::vector<optim::SquareSums> square_sums(
      const std::vector<Work>& works,
      const std::function<optim::SquareSums(const Work&, const optim::UpdateRange&)>& of) const;

  std::vector<std::string> slots_of(std::size_t i) const;
  std::vector<torch::Tensor> tensors_of(std::size_t i) const;
  torch::ScalarType type_of(std::size_t i, const std::string& slot) const;
  torch::ScalarType weights_type(std::size_t i) const;

  OptimizerOptions options_;
  OptimizerOptions rest_;  // of what is no hidden matrix
  std::vector<OwnedRange> owned_;
  SumOverRanks sum_;
  const optim::UpdateFunction update_float_, update_double_;
  std::vector<State> states_;
  bool keeps_outer_ = false;
};

}  // namespace stormo::train
