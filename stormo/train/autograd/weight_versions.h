#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/TensorImpl.h>
#include <torch/types.h>

namespace stormo::train {

/// Keeps old values of parameters for graphs that were computed with them, while the parameters are
/// updated (weight stashing of PipeDream). An update makes a copy only of parameters that a held
/// version has, too. There are at most as many copies as versions were held at the same time, the
/// newest one included. One thread.
class WeightVersions {
 public:
  /// What the parameters were at some time.
  struct Values {
    std::int64_t number = 0;  ///< of updates before
    std::vector<torch::Tensor> tensors;
    // autograd's, which notices changes in place; each version has its own
    std::vector<c10::VariableVersion> counters;
  };
  using Version = std::shared_ptr<const Values>;

  /// Changes the memory of `parameters` from update to update. The tensors are shared.
  explicit WeightVersions(std::vector<torch::Tensor> parameters);

  /// What the parameters are now. Hold it as long as graphs need these values.
  const Version& newest() const { return newest_; }
  /// Call it before an update in place of the parameters [first, last).
  void begin_update(std::size_t first, std::size_t last);
  /// Gives the parameters the memory that they had in the beginning, with the newest values.
  /// Nobody holds a version.
  void drain();

  /// While it lives, the parameters are those of a version, for forward and backward.
  class Use {
   public:
    /// Null: the newest.
    Use(WeightVersions* versions, const Version& version);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    WeightVersions* versions_ = nullptr;  // to switch back
  };

 private:
  void show(const Values& values);
  bool is_held(std::size_t parameter, const torch::Tensor& memory) const;

  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> original_;  // the memory that they had in the beginning
  Version newest_;
  std::vector<std::weak_ptr<const Values>> older_;  // that somebody held when they were replaced
};

/// While it lives, autograd does not count changes in place of these tensors. So a backward that
/// comes later uses their new values with the activations that the old ones made, as the code of
/// the authors of DDG does, where libtorch would refuse.
class UncountedChange {
 public:
  explicit UncountedChange(std::vector<torch::Tensor> tensors);
  ~UncountedChange();
  UncountedChange(const UncountedChange&) = delete;
  UncountedChange& operator=(const UncountedChange&) = delete;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<c10::VariableVersion> counters_;
};

}  // namespace stormo::train
