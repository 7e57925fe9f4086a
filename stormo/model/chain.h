#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/plan/step_plan.h>

namespace stormo::model {

/// The smallest part of a model that a plan computes by itself: one tensor in, one tensor out.
class Segment : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  virtual torch::Tensor forward(torch::Tensor x) = 0;
  /// Multiply-adds count as two; per sample; 0 when unknown.
  virtual std::int64_t flops_per_sample() const { return 0; }
  /// Parameters of other segments that forward() reads.
  virtual std::vector<torch::Tensor> borrowed_parameters() const { return {}; }
};

/// A model as a chain of Segments, written for one device, that is also a plain module:
/// parameters() and named_parameters() are those of the segments, in order; forward() runs all of
/// them.
class Chain : public torch::nn::Module {
 public:
  /// Runs all segments.
  torch::Tensor forward(torch::Tensor x);
  const std::vector<std::shared_ptr<Segment>>& segments() const { return segments_; }
  plan::ModelShape shape() const;

 protected:
  explicit Chain(std::string name) : torch::nn::Module(std::move(name)) {}
  void append(std::string name, std::shared_ptr<Segment> segment);

 private:
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<Segment>> segments_;
};

}  // namespace stormo::model
