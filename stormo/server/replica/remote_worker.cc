#include <stormo/server/replica/remote_worker.h>

#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::server {

RemoteWorker::RemoteWorker(Replica& replica, int worker, Duration timeout)
    : replica_(replica),
      worker_(worker),
      executor_(replica.executor_of(std::max(worker, 0))),
      timeout_(timeout) {
  // without memory every payload is refused
  auto memory = transport::MemoryFile::anonymous(executor_.largest_payload() + 1);
  if (memory.ok()) staging_ = std::move(*memory);
}

RemoteWorker::~RemoteWorker() {
  cut();
  if (thread_.joinable()) thread_.join();
}

void RemoteWorker::attach(transport::Channel socket,
                          std::function<void(const Status&)> on_nonsense) {
  cut();
  socket.set_blocking();
  connection_ = std::make_shared<Connection>();
  connection_->socket = std::move(socket);
  connection_->on_nonsense = std::move(on_nonsense);
  running_.fetch_add(1);
  thread_ = std::thread([this, before = std::move(thread_), connection = connection_]() mutable {
    if (before.joinable()) before.join();
    serve(std::move(connection));
    running_.fetch_sub(1);
  });
}

void RemoteWorker::cut() {
  if (!connection_) return;
  connection_->is_cut = true;
  (void)::shutdown(connection_->socket.fd(), SHUT_RDWR);
}

Status RemoteWorker::cancelled() const {
  if (!serving_->is_cut) return {};
  return Status(Code::kCancelled, "the connection of the worker was cut");
}

void RemoteWorker::serve(std::shared_ptr<Connection> connection) {
  serving_ = std::move(connection);
  Status status;
  while (status.ok() && !serving_->is_cut) status = serve_one(serving_->socket);
  (void)::shutdown(serving_->socket.fd(), SHUT_RDWR);
  if (status.code() == Code::kCorrupt) serving_->on_nonsense(status);
}

/// Executes one request. A failure ends the connection.
Status RemoteWorker::serve_one(transport::Channel& socket) {
  STORMO_ASSIGN_OR_RETURN(const auto head, serving_->heads.receive(socket));
  if (!head) return io_error("a socket that blocks gave nothing");
  STORMO_ASSIGN_OR_RETURN(const DataRequest request, decode<DataRequest>(*head));
  if (worker_ == kPrimary) return follow(socket, request);
  STORMO_ASSIGN_OR_RETURN(const Payload payload,
                          executor_.receive(socket, request, staging_.data()));
  RequestExecutor::Answer fresh{.id = request.id};
  STORMO_ASSIGN_OR_RETURN(
      RequestExecutor::Answer * answer,
      replica_.answer(
          executor_, request, payload, timeout_, [this] { return cancelled(); }, fresh));
  return answer->bytes.send_all(socket);
}

/// Of the primary: the answer says only that it was executed.
Status RemoteWorker::follow(transport::Channel& socket, const DataRequest& request) {
  const bool has_worker = request.worker >= 0 && request.worker < replica_.run().workers();
  if (!has_worker || (is_about_worker(request.op) && !request.given.empty())) {
    return RequestExecutor::misfit();
  }
  Payload payload;
  if (!is_about_worker(request.op)) {
    const RequestExecutor& in_name = replica_.executor_of(request.worker);
    STORMO_ASSIGN_OR_RETURN(payload, in_name.receive(socket, request, staging_.data()));
  }
  STORMO_RETURN_IF_ERROR(replica_.follow(request, payload));
  ByteRanges bytes;
  bytes.set_head(encode(transport::Reply{.id = request.id}));
  return bytes.send_all(socket);
}

}  // namespace stormo::server
