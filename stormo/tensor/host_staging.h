#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <stormo/comm/communicator.h>

namespace stormo::tensor {

/// A group whose buffers may lie in the memory of a device, over an engine that takes host memory
/// only. Each operation copies what is on the device to the host, where large tensors are in the
/// Arena, runs there, and copies the result back. Operations on host memory pass through.
///
/// The calling thread waits until the device has computed what is sent. An engine of the device
/// itself does not: it enqueues the operation on Buffer::stream, and needs no HostStaging.
class HostStaging final : public comm::Communicator {
 public:
  /// `host` is borrowed. Buffers on a device are on one of the type of `device`.
  HostStaging(comm::Communicator& host, c10::Device device) : host_(host), device_(device) {}
  HostStaging(std::unique_ptr<comm::Communicator> host, c10::Device device)
      : owned_(std::move(host)), host_(*owned_), device_(device) {}

  Status run(const comm::Request& request, Deadline by) override;
  comm::Work submit(const comm::Request& request) override;
  Result<std::unique_ptr<comm::Communicator>> subgroup(std::span<const Rank> members,
                                                       Deadline by) override;
  Result<std::unique_ptr<comm::Communicator>> group_of(std::span<const Rank> members,
                                                       const std::string& name,
                                                       Deadline by) override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.local_rank(); }
  int local_size() const override { return host_.local_size(); }
  int cross_rank() const override { return host_.cross_rank(); }
  int cross_size() const override { return host_.cross_size(); }
  const std::string& host() const override { return host_.host(); }
  const std::vector<int>& ranks_per_host() const override { return host_.ranks_per_host(); }
  transport::Arena& arena() override { return host_.arena(); }
  std::byte* peer_address(int peer, std::uint64_t offset) override {
    return host_.peer_address(peer, offset);
  }
  Status status() const override { return host_.status(); }
  void fail(Status cause) override { host_.fail(std::move(cause)); }
  void set_section(std::string_view text) override { host_.set_section(text); }
  std::uint64_t bytes_sent() const override { return host_.bytes_sent(); }
  std::string algorithm(plan::GoalKind goal, std::uint64_t bytes) const override {
    return host_.algorithm(goal, bytes);
  }
  void set_sink(Sink* sink) override { host_.set_sink(sink); }
  Status finalize(Deadline by) override { return host_.finalize(by); }
  Status leave() override { return host_.leave(); }

 private:
  const std::unique_ptr<comm::Communicator> owned_;
  comm::Communicator& host_;
  const c10::Device device_;
};

}  // namespace stormo::tensor
