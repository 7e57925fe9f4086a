#include <stormo/tensor/host_staging.h>

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <stormo/comm/operation/operation.h>
#include <stormo/comm/operation/outcome.h>
#include <stormo/comm/pending_operation.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>

namespace stormo::tensor {
namespace {

bool is_on_device(const comm::Buffer& b) { return b.device.kind != comm::Device::Kind::kCpu; }

/// Host memory that stands for one side of a request.
class Side {
 public:
  Side(std::span<const comm::Buffer> buffers, c10::DeviceType type)
      : buffers_(buffers.begin(), buffers.end()) {
    for (comm::Buffer& b : buffers_) {
      if (!is_on_device(b)) continue;
      const c10::Device device(type, static_cast<c10::DeviceIndex>(b.device.index));
      const auto options = at::TensorOptions(scalar_type_of(b.dtype));
      const at::Tensor there = at::for_blob(b.data, {b.count})
                                   .options(options.device(device))
                                   .target_device(device)
                                   .make_tensor();
      copies_.push_back({there, at::empty({b.count}, options)});
      b = buffer_of(copies_.back().here);
    }
  }
  std::span<const comm::Buffer> buffers() const { return buffers_; }
  void read() const {
    for (const Copy& c : copies_) c.here.copy_(c.there);
  }
  void write_back() const {
    for (const Copy& c : copies_) c.there.copy_(c.here);
  }

 private:
  struct Copy {
    at::Tensor there, here;
  };
  std::vector<comm::Buffer> buffers_;
  std::vector<Copy> copies_;
};

/// A request with its buffers on the host.
class Staged {
 public:
  Staged(const comm::Request& request, c10::DeviceType type, Rank me)
      : in_(request.in, type),
        out_(in_place(request) ? Side({}, type) : Side(request.out, type)),
        request_(request),
        returns_(gives_result(request, me)) {
    if (comm::contributes(request, me)) in_.read();
    request_.in = in_.buffers();
    request_.out = result(request).buffers();
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  const comm::Request& request() const { return request_; }
  void write_back() const {
    if (returns_) result(request_).write_back();
  }

 private:
  /// Whether the operation writes buffers of this rank.
  static bool gives_result(const comm::Request& r, Rank me) {
    switch (r.kind) {
      case comm::OperationKind::kSend: return false;
      case comm::OperationKind::kBroadcast: return r.root != me;
      case comm::OperationKind::kGather:
      case comm::OperationKind::kReduce: return r.root == me;
      case comm::OperationKind::kReceive:
      case comm::OperationKind::kAllReduce:
      case comm::OperationKind::kAllGather:
      case comm::OperationKind::kReduceScatter:
      case comm::OperationKind::kScatter:
      case comm::OperationKind::kAllToAll:
      case comm::OperationKind::kScan:
      case comm::OperationKind::kExclusiveScan:
      case comm::OperationKind::kBarrier:
      case comm::OperationKind::kFinalize:
      case comm::OperationKind::kSubgroup: break;
    }
    return true;
  }
  static bool in_place(const comm::Request& r) { return r.in.data() == r.out.data(); }
  const Side& result(const comm::Request& r) const { return in_place(r) ? in_ : out_; }

  Side in_, out_;
  comm::Request request_;
  bool returns_;
};

/// A rank that cannot take part must not leave the others waiting for it.
Result<std::shared_ptr<const Staged>> stage(const comm::Request& request, c10::DeviceType type,
                                            comm::Communicator& host) {
  std::shared_ptr<const Staged> staged;
  const Status outcome = comm::outcome_of([&] {
    staged = std::make_shared<const Staged>(request, type, host.rank());
    return Status();
  });
  if (outcome.ok()) return staged;
  host.fail(outcome.within("copying to the host"));
  return outcome;
}

/// A rank that lacks the result must not leave the others waiting for its next operation.
Status write_back(const Staged& staged, comm::Communicator& host) {
  const Status outcome = comm::outcome_of([&] {
    staged.write_back();
    return Status();
  });
  if (!outcome.ok()) host.fail(outcome.within("copying a result to the device"));
  return outcome.ok() ? outcome : host.status();
}

bool is_on_host(const comm::Request& r) {
  return std::ranges::none_of(r.in, is_on_device) && std::ranges::none_of(r.out, is_on_device);
}

}  // namespace

Status HostStaging::run(const comm::Request& request, Deadline by) {
  if (is_on_host(request)) return host_.run(request, by);
  STORMO_ASSIGN_OR_RETURN(const auto staged, stage(request, device_.type(), host_));
  STORMO_RETURN_IF_ERROR(host_.run(staged->request(), by));
  return write_back(*staged, host_);
}

comm::Work HostStaging::submit(const comm::Request& request) {
  if (is_on_host(request)) return host_.submit(request);
  auto made = stage(request, device_.type(), host_);
  if (!made.ok()) return comm::Work::completed(made.status());
  const std::shared_ptr<const Staged> staged = *std::move(made);
  const auto written = std::make_shared<comm::PendingOperation>();
  host_.submit(staged->request()).then([&host = host_, staged, written](const Status& outcome) {
    written->complete(outcome.ok() ? write_back(*staged, host) : outcome);
  });
  return comm::Work(written);
}

Result<std::unique_ptr<comm::Communicator>> HostStaging::subgroup(std::span<const Rank> members,
                                                                  Deadline by) {
  STORMO_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> group, host_.subgroup(members, by));
  if (group == nullptr) return group;
  return std::unique_ptr<comm::Communicator>(new HostStaging(std::move(group), device_));
}

Result<std::unique_ptr<comm::Communicator>> HostStaging::group_of(std::span<const Rank> members,
                                                                  const std::string& name,
                                                                  Deadline by) {
  STORMO_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> group,
                          host_.group_of(members, name, by));
  return std::unique_ptr<comm::Communicator>(new HostStaging(std::move(group), device_));
}

}  // namespace stormo::tensor
