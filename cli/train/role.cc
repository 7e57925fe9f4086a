// Processes of a job whose parameters lie in server processes: they form no group.
#include <cli/train/role.h>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/train/evaluator.h>
#include <cli/train/report.h>
#include <cli/train/server_probe.h>
#include <stormo/base/printable.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/launch/process/signals.h>
#include <stormo/launch/secret_file.h>
#include <stormo/server/process/shard_server.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/transport/store/store.h>

namespace stormo::cli {
namespace {

constexpr const char* kSecretFile = "STORMO_SECRET_FILE";

int refuse(const TrainRun& run, const Status& status) {
  std::cerr << "stormo train: " << message_text(status.message()) << "\n";
  if (run.words.json && (run.rank == 0 || !run.launched)) {
    write_error_event(kExitUsage, status.message());
  }
  return kExitUsage;
}

std::string address_key(int server) { return fmt::format("server/{}", server); }

void say(const std::string& event) { std::cerr << "stormo train: " << message_text(event) << "\n"; }

/// Readable when this process is asked to stop. Notices to workers do not end it.
transport::Descriptor stop_requests() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGXCPU}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM})
    if (!launch::is_ignored(signal)) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return transport::Descriptor(::signalfd(-1, &signals, SFD_CLOEXEC));
}

/// Serves until the first worker has finished. `told`: gets the address before.
Status serve(server::ShardServer::Options options, int stop_fd,
             const std::function<Status(const transport::HostPort&)>& told) {
  options.on_event = say;
  options.memory = launch::available_memory();
  STORMO_ASSIGN_OR_RETURN(const auto server, server::ShardServer::listen(std::move(options)));
  STORMO_RETURN_IF_ERROR(told(server->address()));
  return server->serve(stop_fd);
}

/// The signal that made `stop_fd` readable.
int signal_of(int stop_fd) {
  signalfd_siginfo info{};
  const bool has = ::read(stop_fd, &info, sizeof info) == sizeof info;
  return has ? static_cast<int>(info.ssi_signo) : SIGTERM;
}

/// `stop_fd`: see stop_requests().
int end_of(const TrainRun& run, const Status& status, int stop_fd = -1) {
  if (status.ok()) return kExitOk;
  if (status.code() == Code::kInvalidArgument || status.code() == Code::kRefused) {
    return refuse(run, status);
  }
  if (!was_told(run, status)) say(status.message());
  if (status.code() == Code::kInterrupted) return 128 + signal_of(stop_fd);
  const std::string saved =
      status.code() == Code::kPeerLost ? newest_checkpoint_of(run) : std::string();
  const int exit_code = saved.empty() ? kExitFailed : kExitSaved;
  if (run.words.json && (run.rank == 0 || !run.launched))
    write_error_event(exit_code, status.message());
  if (!saved.empty() && !run.launched) std::cerr << how_to_continue(saved) << "\n";
  return exit_code;
}

Duration worker_timeout(const TrainRun& run) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(run.parsed.recipe.train.servers.worker_timeout_s));
}

/// What the first worker will remove.
void note_earlier_run(TrainRun& run) {
  if (run.parsed.recipe.train.overwrite) run.earlier = newest_checkpoint_of(run);
}

/// Of a worker that is cut: those whose number is that of the rank, modulo the ranks.
std::vector<transport::HostPort> servers_of_part(const std::vector<transport::HostPort>& all,
                                                 int rank, int ranks) {
  std::vector<transport::HostPort> out;
  for (std::size_t s = static_cast<std::size_t>(rank); s < all.size();
       s += static_cast<std::size_t>(ranks)) {
    out.push_back(all[s]);
  }
  return out;
}

/// Connects to the servers, at most for `patience`, and trains. Of several ranks of a worker the
/// first one connects; of the parts of a worker each, to servers of its own.
int work(TrainRun run, server::WorkerSession::Options options, Duration patience) {
  options.timeout = worker_timeout(run);
  options.on_event = say;
  options.backups = run.parsed.recipe.train.servers.backups;
  const int rank = run.worker_ranks.rank;
  const train::RankSession::Place place{options.worker, options.workers, options.hosts,
                                        options.backups, rank};
  const bool is_cut = ranks_of_replica(run.parsed.recipe.train.strategy) > 1;
  if (is_cut) options.servers = servers_of_part(options.servers, rank, run.worker_ranks.size);
  if (rank == 0 || is_cut) {
    auto made = server::WorkerSession::connect(std::move(options), Deadline::after(patience));
    if (!made.ok()) return end_of(run, made.status());
    run.session = std::move(*made);
  }
  if (run.worker_ranks.size > 1) {
    run.rank_session = std::make_shared<train::RankSession>(place, std::move(run.session));
    run.session = run.rank_session;
  }
  return run_rank(run);
}

/// The group of the ranks of one worker at the job's Store, where they say on which hosts they are.
/// What they wait for at the servers may take any time, so nobody is missed who only waits.
Result<transport::Rendezvous> group_of_worker(const transport::Rendezvous& job, int ranks,
                                              transport::StoreClient& store, Deadline by) {
  const auto key_of = [](Rank rank) { return fmt::format("host_of/{}", rank); };
  const std::string own = std::to_string(job.cross_rank);
  STORMO_RETURN_IF_ERROR(store.set(key_of(job.rank), own, by));
  transport::Rendezvous out = job;
  out.rank = job.rank % ranks;
  out.size = ranks;
  std::vector<std::string> hosts;  // by rank of the worker
  for (Rank r = job.rank - out.rank; std::ssize(hosts) < ranks; ++r) {
    Result<std::string> host = store.get(key_of(r), by);
    if (!host.ok()) return host.status().within(fmt::format("waiting for rank {}", r));
    hosts.push_back(std::move(*host));
  }
  out.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + out.rank, own));
  out.local_size = static_cast<int>(std::ranges::count(hosts, own));
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  out.cross_rank = static_cast<int>(std::ranges::find(hosts, own) - hosts.begin());
  out.cross_size = static_cast<int>(hosts.size());
  out.epoch = job.epoch + 1 + static_cast<Epoch>(job.rank / ranks);  // has names of its own there
  out.stall_warning = out.stall_timeout = Duration::zero();
  return out;
}

/// The workers of a host divide its cores, unless the user says how many threads each has. What is
/// wrong with that is told when the worker uses it.
void share_cores(TrainRun& run, int workers_here) {
  const int cores = launch::read_cpus().usable_cores();
  const auto asked = launch::threads_per_rank(launch::process_environment());
  std::int64_t threads = run.parsed.recipe.threads > 0 ? run.parsed.recipe.threads
                         : asked.ok()                  ? *asked
                                                       : 0;
  if (threads == 0) {
    threads = std::max(1, cores / workers_here);
    if (asked.ok()) run.threads = static_cast<int>(threads);
  }
  if (workers_here * threads <= cores) return;
  say(
      fmt::format("warning: {} workers of the cluster on this host share {} core(s), and wait for "
                  "each other",
                  workers_here, cores));
}

/// The cluster's secret. Between hosts there must be one.
Result<transport::Secret> secret_of(const launch::ClusterTask& task) {
  const char* file = std::getenv(kSecretFile);
  if (file != nullptr && *file == '\0') {
    return invalid_argument(std::string(kSecretFile) +
                            " is set, but empty: set it to a file with the cluster's secret, or "
                            "unset it, for servers on loopback addresses only");
  }
  if (file != nullptr) {
    auto secret = launch::read_secret_file(file);
    return secret.ok() ? std::move(secret) : secret.status().within(kSecretFile);
  }
  const bool local = std::ranges::all_of(task.servers, [](const transport::HostPort& a) {
    return a.host == "localhost" || launch::is_loopback(a.host);
  });
  if (local) return transport::Secret();
  return invalid_argument(
      std::string("TF_CONFIG has servers on other hosts: set ") + kSecretFile +
      " to a file with the cluster's secret, the same on all hosts. Make it with: " +
      std::string(launch::kMakeSecret));
}

}  // namespace

int run_launched_role(TrainRun run) {
  note_earlier_run(run);
  const auto place = launch::read_environment(launch::process_environment());
  if (!place.ok()) return refuse(run, place.status());
  if (place->source != "stormo") {
    return refuse(
        run, invalid_argument("strategy.server_processes needs 'stormo train -n' or TF_CONFIG: "
                              "other launchers start ranks of one group"));
  }
  const int servers = run.parsed.recipe.train.servers.processes;
  const int ranks = place->size - servers;  // of all workers
  const auto of_worker = static_cast<int>(ranks_of_worker(run.parsed.recipe.train.strategy));
  const bool is_server = place->rank >= ranks;
  // the launcher passes signals on to all; servers stay until the first worker has saved. Before
  // there are threads, which would have them unblocked.
  const auto ignored = is_server ? stop_requests() : transport::Descriptor();
  auto store = transport::StoreClient::connect({.address = place->store, .secret = place->secret},
                                               Deadline::after(place->join_timeout));
  if (!store.ok()) return end_of(run, store.status());
  const Deadline by = Deadline::after(place->join_timeout);
  if (is_server) {
    const std::string here = (*store)->local_address();
    return end_of(run,
                  serve({.address = {here.empty() ? "127.0.0.1" : here, 0},
                         .ports = place->ports,
                         .secret = place->secret,
                         .stop_grace = {},
                         .arrival_time = place->join_timeout,
                         .stall = {place->stall_warning, place->stall_timeout},
                         .on_event = {}},
                        -1, [&](const transport::HostPort& address) -> Status {
                          STORMO_RETURN_IF_ERROR((*store)->set(address_key(place->rank - ranks),
                                                               transport::to_string(address), by));
                          return (*store)->goodbye(by);
                        }));
  }
  server::WorkerSession::Options options{.servers = {},
                                         .secret = place->secret,
                                         .worker = place->rank / of_worker,
                                         .workers = ranks / of_worker,
                                         .hosts = place->cross_size};
  for (int s = 0; s < servers; ++s) {
    const Result<std::string> text = (*store)->get(address_key(s), by);
    if (!text.ok())
      return end_of(run, text.status().within("waiting for server " + std::to_string(s)));
    options.servers.push_back(transport::parse_host_port(*text).take_or_throw());
  }
  if (of_worker > 1) {
    auto group = group_of_worker(*place, of_worker, **store, by);
    if (!group.ok()) return end_of(run, group.status());
    run.worker_ranks = *std::move(group);
  }
  static_cast<void>((*store)->goodbye(by));
  run.rank = place->rank;
  return work(std::move(run), std::move(options), place->join_timeout);
}

int run_configured_role(TrainRun run, const launch::ClusterTask& task) {
  note_earlier_run(run);
  const auto secret = secret_of(task);
  if (!secret.ok()) return refuse(run, secret.status());
  const auto environment = launch::read_environment(launch::process_environment());
  if (!environment.ok()) return refuse(run, environment.status());
  const Duration join_time = environment->join_timeout;
  if (task.role == launch::ClusterTask::Role::kEvaluator) {
    const auto stop = stop_requests();
    ServerProbe probe(task.servers, *secret, join_time, worker_timeout(run));
    const auto is_over = [&probe](bool began) {
      return probe.are_gone(std::chrono::steady_clock::now(), began);
    };
    return end_of(run, evaluate_checkpoints(run, is_over, stop.get()), stop.get());
  }
  if (task.role == launch::ClusterTask::Role::kServer) {
    const auto stop = stop_requests();
    return end_of(run,
                  serve({.address = task.servers[static_cast<std::size_t>(task.index)],
                         .ports = {},
                         .secret = *secret,
                         .stop_grace = worker_timeout(run),
                         .arrival_time = join_time,
                         .stall = {environment->stall_warning, environment->stall_timeout},
                         .on_event = {}},
                        stop.get(),
                        [](const transport::HostPort& address) {
                          say("serves at " + transport::to_string(address));
                          return Status();
                        }),
                  stop.get());
  }
  share_cores(run, task.workers_here);
  run.rank = task.index;
  return work(std::move(run),
              {.servers = task.servers,
               .secret = *secret,
               .worker = task.index,
               .workers = task.workers,
               .hosts = task.hosts},
              join_time);
}

}  // namespace stormo::cli
