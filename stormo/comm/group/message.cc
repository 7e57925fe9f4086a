// Messages between two ranks go through the mailbox, and do not wait for collectives.
#include <utility>

#include <stormo/comm/group/group.h>
#include <stormo/comm/mailbox/host_peers.h>
#include <stormo/comm/mailbox/network_peers.h>
#include <stormo/comm/operation/check_request.h>

namespace stormo::comm {

Status Group::check_message(const Request& request) const {
  STORMO_RETURN_IF_ERROR(check_request(request, rank(), size()));
  if (finalized_) return invalid_argument("the group was left or finalized");
  if (!parts_.health->failed()) return {};
  return status().within(to_text(describe(request, size())));
}

Work Group::submit_message(const Request& request) {
  if (Status wrong = check_message(request); !wrong.ok()) return Work::completed(std::move(wrong));
  return mailbox_->submit(request);
}

Status Group::run_message(const Request& request, Deadline by, Mailbox::Channel channel) {
  STORMO_RETURN_IF_ERROR(check_message(request));
  return mailbox_->run(request, by, channel);
}

std::unique_ptr<Mailbox> Group::make_mailbox() {
  Mailbox::Parts parts;
  parts.size = size();
  parts.health = parts_.health;
  for (const int host : hosts_.host) parts.in_host.push_back(host == cross_rank());
  transport::HostGroup& host = *parts_.connections.host_group;
  if (local_size() > 1) {
    const int cores = host.crowded() ? 1 : local_size();
    parts.host = std::make_unique<HostPeers>(host, rank() - local_rank(),
                                             transport::wait_policy(local_size(), cores));
  }
  if (cross_size() > 1) {
    parts.network = std::make_unique<NetworkPeers>(std::move(parts_.connections.lines));
  }
  parts.activity = message_activity_;
  parts.give_up = [this](const Operation& operation, Status outcome) {
    static_cast<void>(give_up(operation, std::move(outcome)));
  };
  parts.done = [this](const Operation& operation, TimePoint begin) {
    record(Lane::kCommunication, operation, begin, now());
  };
  return std::make_unique<Mailbox>(std::move(parts));
}

void Group::set_sink(Sink* sink) {
  sink_ = sink;
  if (mailbox_) mailbox_->await_done_calls();  // the one before is not used any more
}

}  // namespace stormo::comm
