// Pushes to and pulls from shards on other hosts, against plain TCP streams of the same bytes.
//   remote_shards server HOST:PORT                          also plain streams, on the next port
//   remote_shards worker NUMBER WORKERS BYTES SHARDS SECONDS ROUNDS SERVER...
// In a turn a worker pushes BYTES, divided into SHARDS, and pulls as many. Turns with shards and
// turns with streams follow each other every SECONDS, at the same times in all workers of a
// machine.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <bench/statistics.h>
#include <stormo/server/byte_ranges.h>
#include <stormo/server/shard_server.h>
#include <stormo/server/worker_session.h>
#include <stormo/transport/net/socket.h>

namespace {

using namespace stormo;  // NOLINT: a program of one file
using server::ByteRanges;
using server::Shard;
using transport::Descriptor;
using transport::HostPort;

constexpr auto kPatience = std::chrono::seconds(30);

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

HostPort next_port(HostPort at) {
  ++at.port;
  return at;
}

/// A connection that blocks.
Descriptor connect_to(const HostPort& at) {
  const auto to = transport::resolve(at).take_or_throw().front();
  Descriptor fd(::socket(to.family(), SOCK_STREAM, 0));
  transport::tune_tcp(fd.get());
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return fd;
}

/// Takes and sends back as many bytes as the first word says, for ever.
void echo(Descriptor fd) {
  transport::tune_tcp(fd.get());
  std::vector<char> bytes;
  for (;;) {
    std::uint64_t count = 0;
    ByteRanges head, in, out;
    head.add(&count, sizeof count);
    if (!head.receive_all(fd.get()).ok()) return;
    bytes.resize(count);
    in.add(bytes.data(), count);
    out.add(bytes.data(), count);
    if (!in.receive_all(fd.get()).ok() || !out.send_all(fd.get()).ok()) return;
  }
}

int serve(const HostPort& at) {
  auto shards = server::ShardServer::listen({.address = at}).take_or_throw();
  const Descriptor listener = transport::listen_tcp(next_port(at), {}).take_or_throw();
  std::thread([fd = listener.get()] {
    for (;;) {
      const int one = ::accept(fd, nullptr, nullptr);
      if (one >= 0) std::thread(echo, Descriptor(one)).detach();
    }
  }).detach();
  const Status status = shards->serve(-1);
  std::fprintf(stderr, "server: %s\n", status.to_string().c_str());
  std::_Exit(status.ok() ? 0 : 1);
}

class Worker {
 public:
  Worker(server::WorkerSession::Options options, std::int64_t bytes, std::size_t shards)
      : gradient_(static_cast<std::size_t>(bytes) / sizeof(float) / shards, -1.0F),
        plain_(static_cast<std::size_t>(bytes) / options.servers.size()) {
    for (const HostPort& at : options.servers) streams_.push_back(connect_to(next_port(at)));
    server::RunTerms terms;
    terms.workers = options.workers;
    const server::ShardPiece piece{.end = std::ssize(gradient_)};
    terms.pieces.assign(shards, {piece});
    const Deadline by = Deadline::after(kPatience);
    session_ = server::WorkerSession::connect(std::move(options), by).take_or_throw();
    shards_ = session_->shards(terms, by).take_or_throw();
    if (session_->is_chief()) throw_if_error(session_->open());
  }

  void push_and_pull() {
    const void* gradient = gradient_.data();
    const server::PushedGradient pushed{.pieces = {&gradient, 1}, .lr = 1, .sequence = sequence_++};
    for (const auto& shard : shards_) shard->begin_push(pushed);
    for (const auto& shard : shards_) shard->begin_read();  // a shard's own push comes first
    for (const auto& shard : shards_) (void)shard->push(pushed).take_or_throw();
    for (const auto& shard : shards_) (void)shard->read().take_or_throw();
  }
  void stream() {
    std::vector<std::thread> threads;
    for (const Descriptor& fd : streams_) {
      threads.emplace_back([this, &fd] {
        const std::uint64_t count = plain_.size();
        ByteRanges out, in;
        out.add(&count, sizeof count);
        out.add(plain_.data(), count);
        in.add(plain_.data(), count);
        throw_if_error(out.send_all(fd.get()));
        throw_if_error(in.receive_all(fd.get()));
      });
    }
    for (std::thread& t : threads) t.join();
  }
  void end() { throw_if_error(session_->finish()); }

 private:
  std::vector<float> gradient_;
  std::vector<char> plain_;
  std::vector<Descriptor> streams_;
  std::shared_ptr<server::WorkerSession> session_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::uint64_t sequence_ = 0;
};

/// Turns per second until `end`.
double turns_per_second(double end, const std::function<void()>& turn) {
  const double begin = now();
  int turns = 0;
  while (now() < end) {
    turn();
    ++turns;
  }
  return turns / (now() - begin);
}

int work(std::vector<std::string> args) {
  server::WorkerSession::Options options;
  options.worker = std::stoi(args[0]);
  options.workers = std::stoi(args[1]);
  const std::int64_t bytes = std::stoll(args[2]);
  const double seconds = std::stod(args[4]);
  options.share_memory = false;
  for (std::size_t i = 6; i < args.size(); ++i) {
    options.servers.push_back(transport::parse_host_port(args[i]).take_or_throw());
  }
  const int number = options.worker;
  Worker worker(std::move(options), bytes, std::stoul(args[3]));
  std::vector<double> shards, streams;
  for (int round = 0; round < std::stoi(args[5]); ++round) {
    // the next even period is for shards, the one after it for streams
    const double begin = 2 * seconds * (std::floor(now() / (2 * seconds)) + 1);
    while (now() < begin) std::this_thread::yield();
    shards.push_back(turns_per_second(begin + seconds * 0.9, [&] { worker.push_and_pull(); }));
    while (now() < begin + seconds) std::this_thread::yield();
    streams.push_back(turns_per_second(begin + seconds * 1.9, [&] { worker.stream(); }));
  }
  const bench::Spread ratio = bench::ratios(shards, streams);
  std::printf("worker %d: shards %.1f MB/s each way, streams %.1f MB/s, ratio %.3f (%.3f-%.3f)\n",
              number, bench::median(shards) * static_cast<double>(bytes) / 1e6,
              bench::median(streams) * static_cast<double>(bytes) / 1e6, ratio.median, ratio.min,
              ratio.max);
  worker.end();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 2 && args[0] == "server") {
    return serve(transport::parse_host_port(args[1]).take_or_throw());
  }
  if (args.size() >= 8 && args[0] == "worker") return work({args.begin() + 1, args.end()});
  std::fprintf(stderr, "usage: see bench/remote_shards.cc\n");
  return 2;
}
