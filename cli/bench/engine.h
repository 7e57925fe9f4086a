#pragma once

#include <bench/measure.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// Stormo under measurement.
class StormoEngine : public bench::Engine {
 public:
  StormoEngine(comm::Communicator& world, bool private_buffers)
      : world_(world), private_(private_buffers) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  bool one_host() const override { return world_.cross_size() == 1; }
  std::byte* allocate(std::size_t bytes) override;
  void deallocate(std::byte* memory) override;
  Status run(bench::Operation operation, const bench::Operands& operands) override;
  Status barrier() override { return world_.barrier(); }
  Status largest(std::span<double> values) override {
    return world_.all_reduce(values, comm::ReduceOp::kMax);
  }
  Status total(std::span<double> values) override {
    return world_.all_reduce(values, comm::ReduceOp::kSum);
  }

 private:
  comm::Communicator& world_;
  bool private_;
};

/// The builder that Stormo runs for an operation on `bytes` bytes; empty for a barrier.
std::string algorithm_of(const comm::Communicator& world, bench::Operation operation,
                         std::uint64_t bytes);

}  // namespace stormo::cli
