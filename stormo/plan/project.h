#pragma once

#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/plan/step_plan.h>

namespace stormo::plan {

/// The axis of a mesh over which a model is cut by layers: the ranks with coordinate s on it are
/// stage s of the pipeline, and compute the segments of this stage.
inline constexpr const char* kStageAxis = "pp";

/// The axis whose ranks compute each layer together (tensor parallelism): each has its slice of the
/// parameters that the model splits.
inline constexpr const char* kTensorAxis = "tp";

/// The axis whose ranks have parts of the positions of each sample (context parallelism): they load
/// the same samples, and exchange keys and values in attention.
inline constexpr const char* kContextAxis = "cp";

/// The axes whose ranks have parts of the places (pixels) of each sample (spatial cut): shares of
/// the rows, and of the columns. They load the same samples, and exchange halos (Window).
inline constexpr const char* kRowsAxis = "height";
inline constexpr const char* kColumnsAxis = "width";

/// The axis whose ranks are one worker of parameter servers: they compute parts of its batch, and
/// the first of them pulls and pushes for all.
inline constexpr const char* kWorkerAxis = "worker";

/// Stages of a mesh; 1 without a pipeline.
int num_stages(const Mesh& mesh);
/// The stage of a rank; 0 without a pipeline.
int stage_of(const Mesh& mesh, Rank rank);

/// One of several equal parts, by its number.
struct Part {
  int index = 0;
  int parts = 1;
  bool operator==(const Part&) const = default;
};
/// Which samples a rank computes: ranks that have parts of one replica, or of the positions or
/// places, compute the same ones.
Part data_part(const Mesh& mesh, Rank rank);
/// Which positions of them; all without an axis for that.
Part context_part(const Mesh& mesh, Rank rank);
/// Which rows and columns of them; all without axes for that.
Part rows_part(const Mesh& mesh, Rank rank);
Part columns_part(const Mesh& mesh, Rank rank);
/// Which of the ranks of its worker of servers; the only one without an axis for that.
Part worker_part(const Mesh& mesh, Rank rank);
/// kRowsAxis and kColumnsAxis, those that a mesh has, in its order.
std::vector<std::string> place_axes(const Mesh& mesh);
/// Which of the ranks that compute the same samples with the same part of the model.
Part sample_part(const Mesh& mesh, Rank rank);
/// Which of the ranks that have the same part of the model.
Part copy_of_model(const Mesh& mesh, Rank rank);
/// Which slices a rank has of the parameters that the model splits; the only one without an axis
/// for that.
Part slice_of(const Mesh& mesh, Rank rank);
/// The axes over which one replica of the model is cut, in their order: kStageAxis, kTensorAxis.
std::vector<std::string> model_axes(const Mesh& mesh);
/// The others: the ranks of a group over them have the same part of the model, or shards of it.
std::vector<std::string> data_axes(const Mesh& mesh);
/// Whether it averages parameters among some of the ranks on which they diverge: another average,
/// in some of these steps, is among all.
bool averages_some(const StepPlan& plan, const Action& a);
/// The builder by which the ranks of kAverage add up parameters; empty: what the communicator
/// chooses. Where replicas are cut it adds in the same order at every place of the buffer, so that
/// ranks of one replica that have the same parameter get the same bits.
std::string averaging_algorithm(const Mesh& mesh);
/// The rank's number among those that draw different random numbers: ranks that compute layers
/// or images together draw the same ones, unless they have parts of the positions.
int random_stream(const StepPlan& plan, Rank rank);
/// In how many equal parts ranks that compute the same samples have the output of a segment.
int parts_of_output(const StepPlan& plan, int segment);

/// Whether a segment and the one behind it are of different stages. Any number may be asked for.
bool is_boundary(const ModelShape& model, int segment);

/// The segments between which a move sends: from the stage of one to that of the other.
struct MoveEnds {
  int from = 0;
  int to = 0;
};
MoveEnds ends_of(const Action& move);

/// What concerns which stages of a plan.
class Stages {
 public:
  /// O(parameters).
  explicit Stages(const ModelShape& model);

  int of_segment(int segment) const { return segments_[static_cast<std::size_t>(segment)]; }
  /// The stages that read a parameter, ascending: that of its segment, and those of segments that
  /// borrow it. Each of them has it.
  const std::vector<int>& of_parameter(int parameter) const {
    return parameters_[static_cast<std::size_t>(parameter)];
  }
  /// Whether several stages read it: its gradients on them are terms of a sum.
  bool is_tied(int parameter) const { return of_parameter(parameter).size() > 1; }
  /// Whether the ranks of `stage` take part in an action. A move concerns both its ends, a
  /// parameter's action the stages that have some of its range. O(range).
  bool concern(const Action& a, int stage) const;

 private:
  std::vector<int> segments_;
  std::vector<std::vector<int>> parameters_;
};

/// What one rank has of a model: the same, with the parameters of other stages marked
/// (ParameterShape::elsewhere), and of split parameters the elements of its slice. O(parameters).
ModelShape model_of(const ModelShape& model, int stage, const Part& slice);
/// Of the rank of a stage that has the largest slices.
ModelShape largest_model_of(const ModelShape& model, const Mesh& mesh, int stage);

/// The part of `plan` that one rank executes, in order: its actions as they are, and its part of
/// the model. A push is of the first rank of a worker alone. The global order proves that ranks
/// which execute their parts never block each other: the first action in it that is not done finds
/// all of its inputs. O(actions * range).
StepPlan project(const StepPlan& plan, Rank rank);

}  // namespace stormo::plan
