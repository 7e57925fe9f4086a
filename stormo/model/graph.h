#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stormo/model/chain.h>
#include <stormo/plan/model/segment_graph.h>
#include <stormo/tensor/state_exchange.h>

namespace stormo::model {

/// A graph of segments as one Segment, such as a net of branches. Each segment reads the outputs
/// (states) of earlier ones; the output of the last one is that of the graph.
///
/// Ranks of a TensorParallelGroup can compute it together: each has some of the segments, with
/// their parameters, and a state is sent once to each rank that reads it, forward; its gradient
/// comes back once from there. The ranks agree on who computes what by the same partition
/// (parallel::partition()). J. Dean et al., "Large scale distributed deep networks", NIPS 2012.
class Graph final : public Segment {
 public:
  /// What a segment names as "input" is the input of the graph.
  static constexpr const char* kInput = "input";

  /// `elements`: of the input, per sample.
  explicit Graph(std::int64_t elements);

  /// Appends a segment with an output of [B, sizes...]. It reads the states of the segments named,
  /// in their order; several are joined in dimension 1, so their other sizes must be equal. Throws
  /// Error (kInvalidArgument) for a name that is taken or unknown, sizes that are not positive, and
  /// a segment that borrows parameters of others.
  void add(const std::string& name, std::shared_ptr<Segment> segment,
           const std::vector<std::string>& reads, std::vector<std::int64_t> sizes);

  /// For parallel::partition() and plan::describe().
  const plan::SegmentGraph& graph() const { return graph_; }

  /// From now on `partition.ranks` ranks compute it together, where ranks do. The parameters must
  /// be whole here. Throws Error (kInvalidArgument) for a graph or partition that plan::check()
  /// refuses, and where a segment has buffers, which other ranks would not have, or a parameter
  /// without dimensions.
  void divide(plan::GraphPartition partition);

  /// Throws Error (kInvalidArgument) where a state is not of the sizes stated, or ranks compute it
  /// together of which there are more or fewer than in the partition.
  torch::Tensor forward(torch::Tensor x) override;
  std::int64_t flops_per_sample() const override;
  SplitForm split_form() const override { return form_; }

 private:
  int number_of(const std::string& name) const;
  SplitForm form() const;
  bool is_divided() const { return partition_.ranks > 1 && ranks() != nullptr; }
  bool is_here(std::size_t segment) const;
  torch::Tensor compute(std::size_t segment, const torch::Tensor& x,
                        const std::vector<torch::Tensor>& states) const;
  torch::Tensor forward_together(const torch::Tensor& x) const;
  void move_states(const std::vector<plan::StateMessage>& messages, std::int64_t samples,
                   std::vector<torch::Tensor>& states, tensor::StateExchanges& exchanges) const;
  std::vector<torch::Tensor> parameters_of_others() const;
  std::vector<std::int64_t> sizes_of(int segment, std::int64_t samples) const;

  std::int64_t elements_;
  plan::SegmentGraph graph_;
  std::vector<std::shared_ptr<Segment>> segments_;
  std::vector<std::vector<std::int64_t>> sizes_;  // of the states, of a sample
  plan::GraphPartition partition_;
  plan::GraphRounds rounds_;
  SplitForm form_;  // empty: no ranks divide it
};

}  // namespace stormo::model
