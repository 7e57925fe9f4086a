#include "server_run.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include <gtest/gtest.h>

namespace stormo::server {

bool comes_true(const std::function<bool()>& is_true) {
  for (const Deadline end = Deadline::after(kLong); !end.expired();) {
    if (is_true()) return true;
    ::poll(nullptr, 0, 1);
  }
  return is_true();
}

void side_by_side(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] {
      try {
        work(i);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "number " << i << ": " << e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

WorkerProcess::WorkerProcess(const std::function<int(transport::HostPort)>& work) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[1]);
    std::uint16_t port = 0;
    if (::read(ends[0], &port, sizeof port) != sizeof port) ::_exit(90);
    int code = 91;
    try {
      code = work({.host = "127.0.0.1", .port = port});
    } catch (const std::exception& e) {
      (void)!::write(2, e.what(), std::char_traits<char>::length(e.what()));
    }
    ::_exit(code);
  }
  ::close(ends[0]);
  port_pipe_ = transport::Descriptor(ends[1]);
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void WorkerProcess::start(std::uint16_t port) {
  EXPECT_EQ(::write(port_pipe_.get(), &port, sizeof port), static_cast<ssize_t>(sizeof port));
}

void WorkerProcess::send_signal(int signal) const { EXPECT_EQ(::kill(pid_, signal), 0); }

int WorkerProcess::exit_code() {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

ServerProcess::ServerProcess() {
  auto server = ShardServer::listen({.address = {.host = "127.0.0.1", .port = 0}}).take_or_throw();
  address_ = server->address();
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  outcome_ = transport::Descriptor(ends[0]);
  const transport::Descriptor report(ends[1]);
  process_ = std::make_unique<WorkerProcess>([&](const transport::HostPort&) {
    const Status status = server->serve(-1);
    server.reset();
    (void)!::write(report.get(), status.message().data(), status.message().size());
    return static_cast<int>(status.code());
  });
  process_->start(0);
}

Status ServerProcess::outcome() {
  const int code = process_->exit_code();
  std::string message(1000, '\0');
  const ssize_t bytes = ::read(outcome_.get(), message.data(), message.size());
  message.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  if (code < 0) return Status(Code::kCancelled, "it was killed");
  return code == 0 ? Status() : Status(static_cast<Code>(code), message);
}

ServedRun::ServedRun(transport::Secret secret, std::uint64_t memory)
    : stop_(::eventfd(0, EFD_CLOEXEC)) {
  ShardServer::Options options;
  options.address = {.host = "127.0.0.1", .port = 0};
  options.secret = std::move(secret);
  options.memory = memory;
  options.on_event = [this](const std::string& line) {
    const std::lock_guard lock(mutex_);
    events_.push_back(line);
  };
  server_ = ShardServer::listen(std::move(options)).take_or_throw();
  thread_ = std::thread([this] { outcome_ = server_->serve(stop_.get()); });
}

ServedRun::~ServedRun() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

Status ServedRun::outcome() {
  thread_.join();
  return outcome_;
}

bool ServedRun::has_event(const std::string& part) const {
  return events().find(part) != std::string::npos;
}

std::string ServedRun::events() const {
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const std::string& line : events_) all += line + "\n";
  return all;
}

WorkerSession::Options session_options(const transport::HostPort& server, int worker, int workers,
                                       Duration timeout, bool share_memory) {
  return {.servers = {server},
          .secret = {},
          .worker = worker,
          .workers = workers,
          .timeout = timeout,
          .share_memory = share_memory};
}

RunTerms small_terms(int workers, protocol::PolicyOptions::Kind policy) {
  const DType type = DType::kFloat64;
  return {.facts = {{"recipe", "small"}},
          .pieces = {{{.parameter = 0, .begin = 0, .end = kShardElements, .dtype = type}},
                     {{.parameter = 1, .begin = 0, .end = kShardElements, .dtype = type},
                      {.parameter = 2, .begin = 5, .end = 12, .dtype = type}}},
          .workers = workers,
          .optimizer = {.momentum = 0.5},
          .policy = {.kind = policy, .bound = 1, .n = 1, .backups = 1}};
}

RunTerms counting_terms(int workers, protocol::PolicyOptions::Kind policy, std::size_t shards) {
  RunTerms terms = small_terms(workers, policy);
  terms.optimizer.momentum = 0;
  terms.pieces.resize(1);
  terms.pieces.resize(shards, terms.pieces[0]);
  return terms;
}

WorkerSession::Options ServersWithBackups::options(int worker, int workers,
                                                   Duration timeout) const {
  WorkerSession::Options out{
      .worker = worker, .workers = workers, .timeout = timeout, .backups = true};
  for (const ServerProcess& server : servers_) out.servers.push_back(server.address());
  return out;
}

Worker Worker::begin(const WorkerSession::Options& options, const RunTerms& terms) {
  const Deadline by = Deadline::after(kLong);
  Worker worker;
  worker.session = WorkerSession::connect(options, by).take_or_throw();
  worker.shards = worker.session->shards(terms, by).take_or_throw();
  if (worker.session->opens()) {
    throw_if_error(worker.session->ledger().deal({.first_step = 0, .steps = 100}));
    throw_if_error(worker.session->open());
  }
  return worker;
}

Result<Shard::Pushed> Worker::push(std::size_t shard, std::uint64_t sequence, double lr,
                                   Deadline by) {
  const std::vector<double> ones(static_cast<std::size_t>(kShardElements), 1);
  std::vector<PushedPiece> pieces(shards[shard]->pieces().size(), {.array = ones.data()});
  const PushedGradient gradient{.pieces = pieces, .lr = lr, .sequence = sequence};
  if (sequence % 2 == 1) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      shards[shard]->begin_part(gradient, std::span(&i, 1));
      pieces[i].is_sent = true;
    }
  }
  return shards[shard]->push(gradient, by);
}

double Worker::value(std::size_t shard) {
  const Shard::View view = shards[shard]->read(Deadline::after(kLong)).take_or_throw();
  const auto* w = reinterpret_cast<const double*>(view.pieces[0]);
  if (!std::all_of(w, w + kShardElements, [w](double x) { return x == w[0]; })) {
    throw_if_error(Status(Code::kCorrupt, "a torn version"));
  }
  return w[0];
}

}  // namespace stormo::server
