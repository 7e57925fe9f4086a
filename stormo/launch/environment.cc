#include <stormo/launch/environment.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <stormo/base/requirements.h>
#include <stormo/base/rng.h>
#include <stormo/base/text.h>
#include <stormo/base/units.h>
#include <stormo/launch/network.h>
#include <stormo/launch/private_folders.h>
#include <stormo/launch/secret_file.h>
#include <stormo/launch/tf_config.h>
#include <stormo/transport/net/tls_setting.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::launch {
namespace {

/// Reads variables of one launcher and collects everything that is wrong with them.
class Reading {
 public:
  Reading(const EnvironmentReader& read, std::string source)
      : read_(read), source_(std::move(source)) {}

  const EnvironmentReader& reader() const { return read_; }
  bool has(std::string_view name) const { return read_(name).has_value(); }
  std::string text(std::string_view name) const { return read_(name).value_or(""); }

  /// A number of at least `least`; `fallback` when not set, unless it has to be.
  int number(std::string_view name, int least, std::optional<int> fallback = std::nullopt) {
    const auto value = read_(name);
    if (!value) {
      if (!fallback) wrong(fmt::format("{} is not set", name));
      return fallback.value_or(least);
    }
    const auto parsed = number_in<int>(*value);
    if (parsed && *parsed >= least) return *parsed;
    wrong(fmt::format("{}='{}' must be a whole number of at least {}", name, *value, least));
    return least;
  }
  /// False when not set.
  bool yes(std::string_view name) {
    const std::string value = read_(name).value_or("0");
    if (value != "0" && value != "1") wrong(fmt::format("{} is '{}': use 0 or 1", name, value));
    return value == "1";
  }
  /// What a variable says, or that it is wrong.
  template <class T>
  void take(std::string_view variable, Result<T> value, T& out) {
    if (!value.ok()) return wrong(fmt::format("{}: {}", variable, value.status().message()));
    out = *std::move(value);
  }
  void wrong(std::string_view what) { require_(false, what); }
  bool ok() const { return require_.wrong().empty(); }
  Status status() const {
    if (ok()) return {};
    return invalid_argument(fmt::format(
        "environment of {}:\n  {}\n  remedy: let one launcher set all of them, or unset "
        "them (docs/environment.md)",
        source_, require_.wrong()));
  }

 private:
  const EnvironmentReader& read_;
  std::string source_;
  Requirements require_{"\n  "};
};

void check_place(const transport::Rendezvous& r, Reading& in) {
  if (!in.ok()) return;
  if (r.size > kMaxRanks) in.wrong(fmt::format("{} ranks are more than {}", r.size, kMaxRanks));
  if (r.rank >= r.size) in.wrong(fmt::format("rank {} is not below the size {}", r.rank, r.size));
  if (r.local_rank >= r.local_size)
    in.wrong(
        fmt::format("local rank {} is not below the local size {}", r.local_rank, r.local_size));
  if (r.cross_rank >= r.cross_size)
    in.wrong(fmt::format("host index {} is not below the {} hosts", r.cross_rank, r.cross_size));
  if (r.local_size > r.size)
    in.wrong(fmt::format("local size {} exceeds the size {}", r.local_size, r.size));
}

/// What a person may set under any launcher.
void read_options(transport::JobSettings& r, Reading& in) {
  r.interface = in.text("STORMO_INTERFACE");
  r.selection_file = in.text("STORMO_SELECTION");
  r.checksum = in.yes("STORMO_CHECKSUM");
  if (in.has("STORMO_ON_STOPPED")) {
    const std::string value = in.text("STORMO_ON_STOPPED");
    r.on_stopped = value == "wait" ? transport::OnStopped::kWait : transport::OnStopped::kEnd;
    if (value != "wait" && value != "end") {
      in.wrong("STORMO_ON_STOPPED is '" + value + "': use end or wait");
    }
  }
  if (in.has(transport::kTlsVariable)) {
    const Status used = transport::use_tls_setting(in.text(transport::kTlsVariable));
    if (!used.ok()) in.wrong(used.message());
  }
  r.sockets = in.number("STORMO_SOCKETS", 1, 1);
  if (in.has("STORMO_PORTS")) {
    in.take("STORMO_PORTS", parse_port_range(in.text("STORMO_PORTS")), r.ports);
  }
  const auto duration = [&](std::string_view name, Duration& out) {
    if (in.has(name)) in.take(name, parse_duration(in.text(name)), out);
  };
  duration("STORMO_HEARTBEAT", r.heartbeat_timeout);
  duration("STORMO_JOIN_TIMEOUT", r.join_timeout);
  duration("STORMO_STALL_WARNING", r.stall_warning);
  duration("STORMO_STALL_TIMEOUT", r.stall_timeout);
  r.flight_file = in.text("STORMO_FLIGHT_FILE");
}

/// A file name that says whose it is, and is another one for every job.
std::string host_rendezvous_name(std::string_view source, std::string_view job) {
  std::string name = fmt::format("{}-{}", source, job).substr(0, 64);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  }
  return fmt::format("{}-{:016x}", name, fnv1a(job));
}

/// The file of STORMO_RENDEZVOUS; empty when it is not set.
std::string rendezvous_file(Reading& in) {
  if (!in.has("STORMO_RENDEZVOUS")) return {};
  constexpr std::string_view kFile = "file:";
  const std::string value = in.text("STORMO_RENDEZVOUS");
  if (value.starts_with(kFile) && value.size() > kFile.size()) return value.substr(kFile.size());
  in.wrong(fmt::format("STORMO_RENDEZVOUS='{}' must be file:PATH", value));
  return {};
}

/// Foreign launchers hand over no secret: a file that only this user can read carries it. On one
/// host everybody knows where it is, between hosts the user says.
void rendezvous_without_launcher(transport::Rendezvous& r, std::string_view job, Reading& in) {
  r.serve_store = r.rank == 0;
  if (r.size == 1) return;
  r.rendezvous_file = rendezvous_file(in);
  if (in.has("STORMO_RENDEZVOUS")) return;
  if (r.cross_size == 1) {
    r.host_rendezvous_name = host_rendezvous_name(r.source, job);
    r.host_rendezvous_folders = private_folders(in.reader());
    return;
  }
  in.wrong(fmt::format(
      "{} hosts started by {}: set STORMO_RENDEZVOUS=file:PATH, a new file on a file system that "
      "all "
      "hosts share; rank 0 publishes address and secret there (or start with 'stormo run -H ...')",
      r.cross_size, r.source));
}

/// Where rank 0 listens when a rendezvous file tells the others: an address that they can reach.
void choose_listener(transport::Rendezvous& r, Reading& in) {
  if (!r.serve_store || r.rendezvous_file.empty()) return;
  if (r.cross_size == 1) {
    r.store.text = "unix:";
    return;
  }
  if (r.interface.empty()) r.interface = only_interface();
  if (r.interface.empty())
    in.wrong(
        "STORMO_INTERFACE is not set: this host has several network interfaces, or none, so "
        "name the one by which the other hosts reach it");
}

void read_stormo(transport::Rendezvous& r, Reading& in) {
  r.rank = in.number("STORMO_RANK", 0);
  r.size = in.number("STORMO_WORLD_SIZE", 1);
  r.local_rank = in.number("STORMO_LOCAL_RANK", 0, r.rank);
  r.local_size = in.number("STORMO_LOCAL_SIZE", 1, r.size);
  r.cross_rank = in.number("STORMO_CROSS_RANK", 0, 0);
  r.cross_size = in.number("STORMO_CROSS_SIZE", 1, 1);
  r.store.text = in.text("STORMO_STORE");
  if (r.store.empty() && r.size > 1) in.wrong("STORMO_STORE is not set");
  if (in.has("STORMO_SECRET_FD")) {
    const int descriptor = in.number("STORMO_SECRET_FD", 3);
    if (!in.ok()) return;
    in.take(fmt::format("STORMO_SECRET_FD={}", descriptor), take_secret(descriptor), r.secret);
  }
}

void read_torchrun(transport::Rendezvous& r, Reading& in) {
  r.rank = in.number("RANK", 0);
  r.size = in.number("WORLD_SIZE", 1);
  const bool alone = r.size == 1;
  r.local_rank = in.number("LOCAL_RANK", 0, alone ? std::optional(0) : std::nullopt);
  r.local_size = in.number("LOCAL_WORLD_SIZE", 1, alone ? std::optional(1) : std::nullopt);
  if (in.ok() && r.size % r.local_size != 0)
    in.wrong(
        fmt::format("WORLD_SIZE={} is no multiple of LOCAL_WORLD_SIZE={}", r.size, r.local_size));
  r.cross_size = std::max(1, r.size / r.local_size);
  r.cross_rank = in.number("GROUP_RANK", 0, r.rank / r.local_size);
  const int port = in.number("MASTER_PORT", 0);
  const std::string run = in.has("TORCHELASTIC_RUN_ID") ? in.text("TORCHELASTIC_RUN_ID") : "none";
  const int restart = in.number("TORCHELASTIC_RESTART_COUNT", 0, 0);
  rendezvous_without_launcher(r, fmt::format("{}-{}-{}", run, port, restart), in);
}

void read_slurm(transport::Rendezvous& r, Reading& in) {
  r.rank = in.number("SLURM_PROCID", 0);
  r.size = in.has("SLURM_STEP_NUM_TASKS") ? in.number("SLURM_STEP_NUM_TASKS", 1)
                                          : in.number("SLURM_NTASKS", 1);
  r.local_rank = in.number("SLURM_LOCALID", 0);
  r.cross_rank = in.number("SLURM_NODEID", 0);
  r.cross_size = in.has("SLURM_STEP_NUM_NODES") ? in.number("SLURM_STEP_NUM_NODES", 1)
                                                : in.number("SLURM_NNODES", 1);
  const std::string tasks = in.text("SLURM_STEP_TASKS_PER_NODE");
  const std::vector<int> per_node = expand_tasks_per_node(tasks);
  if (static_cast<std::size_t>(r.cross_rank) < per_node.size())
    r.local_size = per_node[static_cast<std::size_t>(r.cross_rank)];
  else
    in.wrong(fmt::format("SLURM_STEP_TASKS_PER_NODE='{}' says nothing about node {}", tasks,
                         r.cross_rank));
  if (in.has("SLURMD_NODENAME")) r.host = in.text("SLURMD_NODENAME");
  rendezvous_without_launcher(
      r,
      fmt::format("{}.{}-{}", in.text("SLURM_JOB_ID"), in.text("SLURM_STEP_ID"),
                  in.number("SLURM_RESTART_COUNT", 0, 0)),
      in);
}

/// mpirun names no host index. Its default mapping fills host after host, so that it follows from
/// the rank; any other mapping is recognised and refused.
void place_host_after_host(transport::Rendezvous& r, std::string_view remedy, Reading& in) {
  const bool filled = r.size % r.local_size == 0 && r.rank % r.local_size == r.local_rank;
  if (in.ok() && !filled)
    in.wrong(
        fmt::format("rank {} as local rank {} of {}: ranks must fill host after host, the same "
                    "number on each; start with mpirun {}",
                    r.rank, r.local_rank, r.local_size, remedy));
  r.cross_size = std::max(1, r.size / r.local_size);
  r.cross_rank = r.rank / r.local_size;
}

void read_open_mpi(transport::Rendezvous& r, Reading& in) {
  r.rank = in.number("OMPI_COMM_WORLD_RANK", 0);
  r.size = in.number("OMPI_COMM_WORLD_SIZE", 1);
  r.local_rank = in.number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  r.local_size = in.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  place_host_after_host(r, "--map-by slot", in);
  const std::string job =
      in.has("PMIX_NAMESPACE") ? in.text("PMIX_NAMESPACE") : in.text("OMPI_MCA_ess_base_jobid");
  rendezvous_without_launcher(r, job, in);
}

/// MPICH and its relatives (Intel MPI, MVAPICH), whose launcher is Hydra.
void read_mpich(transport::Rendezvous& r, Reading& in) {
  r.rank = in.number("PMI_RANK", 0);
  r.size = in.number("PMI_SIZE", 1);
  r.local_rank = in.number("MPI_LOCALRANKID", 0);
  r.local_size = in.number("MPI_LOCALNRANKS", 1);
  place_host_after_host(r, "-ppn with the same number of ranks on each host", in);
  // the ranks of a job on one host have one parent; nothing in the environment names the job. Its
  // number is unique in its namespace only, and containers may share a folder.
  const std::uint64_t pid_namespace = transport::ProcessName::own().pid_namespace;
  rendezvous_without_launcher(r, fmt::format("{}-{}", ::getppid(), pid_namespace), in);
}

/// The ranks of a cluster host after host, so that those of a host are neighbours; the first worker
/// stays the first. Two addresses are of one host if it has the same name in them.
void place_in_cluster(transport::Rendezvous& r, const ClusterTask& task) {
  std::vector<std::string> hosts;
  std::vector<std::vector<int>> workers;  // of each host
  for (int w = 0; w < task.workers; ++w) {
    const std::string& host = task.worker_addresses[static_cast<std::size_t>(w)].host;
    const auto at = std::ranges::find(hosts, host) - hosts.begin();
    if (at == std::ssize(hosts)) {
      hosts.push_back(host);
      workers.emplace_back();
    }
    workers[static_cast<std::size_t>(at)].push_back(w);
  }
  r.size = task.workers;
  r.cross_size = static_cast<int>(hosts.size());
  int first = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const auto here = std::ranges::find(workers[h], task.index);
    if (here != workers[h].end()) {
      r.cross_rank = static_cast<int>(h);
      r.host = r.host.empty() ? hosts[h] : r.host;
      r.local_size = static_cast<int>(workers[h].size());
      r.local_rank = static_cast<int>(here - workers[h].begin());
      r.rank = first + r.local_rank;
    }
    first += static_cast<int>(workers[h].size());
  }
}

/// The workers of a cluster without parameter servers.
void read_tf_config(transport::Rendezvous& r, Reading& in) {
  const auto task = parse_tf_config(in.text("TF_CONFIG"));
  if (!task.ok()) return in.wrong(task.status().message());
  place_in_cluster(r, *task);
  if (r.cross_size == 1 || in.has("STORMO_RENDEZVOUS"))
    return rendezvous_without_launcher(r, task->cluster, in);
  r.serve_store = r.rank == 0;
  r.store.text = "tcp:" + transport::to_string(task->worker_addresses.front());
  if (!in.has("STORMO_SECRET_FILE"))
    return in.wrong(fmt::format(
        "TF_CONFIG has workers on {} hosts: set STORMO_SECRET_FILE to a file with the cluster's "
        "secret, the same on all hosts. Make it with: {}",
        r.cross_size, kMakeSecret));
  in.take("STORMO_SECRET_FILE", read_secret_file(in.text("STORMO_SECRET_FILE")), r.secret);
}

/// Not of a cluster with parameter servers, whose processes form no group; what is wrong is told by
/// read_tf_config().
bool is_group(const EnvironmentReader& read) {
  const auto task = task_of_environment(read);
  return task && (!task->ok() || (*task)->servers.empty());
}

struct Detector {
  std::string_view source;
  std::vector<std::string_view> names;  ///< all are set where this launcher started the process
  void (*fill)(transport::Rendezvous&, Reading&);
};

/// In the order in which they are looked for.
const std::vector<Detector>& detectors() {
  static const std::vector<Detector> all = {
      {"stormo", {"STORMO_RANK"}, read_stormo},
      {"torchrun", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}, read_torchrun},
      {"slurm", {"SLURM_STEP_ID", "SLURM_PROCID"}, read_slurm},
      {"openmpi", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, read_open_mpi},
      {"mpich", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, read_mpich},
      {"tf_config", {"TF_CONFIG"}, read_tf_config}};
  return all;
}

}  // namespace

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** e = environ; e && *e; ++e) out.emplace_back(*e);
  return out;
}

EnvironmentReader process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (!value) return std::nullopt;
    return std::string(value);
  };
}

Result<transport::Rendezvous> read_environment(const EnvironmentReader& read) {
  transport::Rendezvous r;
  r.host = read("STORMO_HOST").value_or("");
  const auto detector = std::ranges::find_if(detectors(), [&](const Detector& d) {
    return std::ranges::all_of(d.names, [&](auto name) { return read(name).has_value(); }) &&
           (d.fill != read_tf_config || is_group(read));
  });
  const bool found = detector != detectors().end();
  if (found) r.source = detector->source;
  Reading in(read, found ? r.source : "this process");
  if (found) detector->fill(r, in);
  read_options(r, in);
  choose_listener(r, in);
  check_place(r, in);
  if (r.host.empty()) r.host = own_host_name();
  STORMO_RETURN_IF_ERROR(in.status());
  return r;
}

Result<transport::JobSettings> read_settings(const EnvironmentReader& read) {
  transport::JobSettings s;
  Reading in(read, "this process");
  read_options(s, in);
  s.rendezvous_file = rendezvous_file(in);
  s.trust_store = in.yes("STORMO_TRUST_STORE");
  s.host_rendezvous_folders = private_folders(in.reader());
  s.host = in.has("STORMO_HOST") ? in.text("STORMO_HOST") : own_host_name();
  STORMO_RETURN_IF_ERROR(in.status());
  return s;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> out;
  for (std::string_view item : split(text, ',')) {
    int repeat = 1;
    if (const std::size_t open = item.find("(x"); open != std::string_view::npos) {
      if (!item.ends_with(')')) return {};
      const auto times = number_in<int>(item.substr(open + 2, item.size() - open - 3));
      if (!times || *times < 1 || *times > kMaxRanks) return {};
      repeat = *times;
      item = item.substr(0, open);
    }
    const auto tasks = number_in<int>(item);
    if (!tasks || *tasks < 1) return {};
    out.insert(out.end(), static_cast<std::size_t>(repeat), *tasks);
    if (out.size() > static_cast<std::size_t>(kMaxRanks)) return {};
  }
  return out;
}

namespace {

/// OMP_NUM_THREADS: "4", or "4,2", where the first number counts; 0: it says nothing. That of
/// torchrun, 1 unless the user has set it, is not what the user has said.
int openmp_threads(const EnvironmentReader& read, int most) {
  const std::string text = read("OMP_NUM_THREADS").value_or("");
  if (text == "1" && read("TORCHELASTIC_RUN_ID")) return 0;
  const auto threads = number_in<int>(std::string_view(text).substr(0, text.find(',')));
  return threads && *threads >= 1 ? std::min(*threads, most) : 0;
}

}  // namespace

Result<int> threads_per_rank(const EnvironmentReader& read, int most) {
  const std::string text = read("STORMO_THREADS").value_or("");
  if (text.empty()) return openmp_threads(read, most);
  const auto threads = number_in<int>(text);
  if (threads && *threads >= 1 && *threads <= most) return *threads;
  return invalid_argument(
      fmt::format("STORMO_THREADS='{}' must be a whole number from 1 to {}; correct it, or unset "
                  "it to share the cores",
                  text, most));
}

Result<transport::PortRange> parse_port_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = number_in<int>(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : number_in<int>(text.substr(dash + 1));
  if (!first || !last || *first < 1 || *last > 65535 || *first > *last)
    return invalid_argument(
        fmt::format("'{}' is not a range of ports; write 29500-29600 (1 to 65535)", text));
  return transport::PortRange{static_cast<std::uint16_t>(*first),
                              static_cast<std::uint16_t>(*last)};
}

std::string placing_variables(std::string_view source) {
  const auto found = std::ranges::find(detectors(), source, &Detector::source);
  return found == detectors().end() ? "" : fmt::format("{}", fmt::join(found->names, ", "));
}

bool places_a_rank(std::string_view name) {
  static constexpr std::string_view kNames[] = {"RANK",
                                                "WORLD_SIZE",
                                                "LOCAL_RANK",
                                                "LOCAL_WORLD_SIZE",
                                                "GROUP_RANK",
                                                "NODE_RANK",
                                                "MASTER_ADDR",
                                                "MASTER_PORT",
                                                "GROUP_WORLD_SIZE",
                                                "MPI_LOCALRANKID",
                                                "STORMO_RANK",
                                                "STORMO_WORLD_SIZE",
                                                "STORMO_LOCAL_RANK",
                                                "STORMO_LOCAL_SIZE",
                                                "STORMO_CROSS_RANK",
                                                "STORMO_CROSS_SIZE",
                                                "STORMO_HOST",
                                                "STORMO_STORE",
                                                "STORMO_SECRET_FD",
                                                "STORMO_JOB",
                                                "STORMO_REGISTER",
                                                "STORMO_INCARNATION",
                                                "STORMO_NO_LAUNCHER",
                                                "STORMO_RENDEZVOUS",
                                                "MPI_LOCALNRANKS",
                                                "ROLE_RANK",
                                                "ROLE_NAME",
                                                "ROLE_WORLD_SIZE",
                                                "TF_CONFIG"};
  static constexpr std::string_view kPrefixes[] = {"TORCHELASTIC_", "SLURM_", "SLURMD_", "OMPI_",
                                                   "PMI_",          "PMIX_",  "HYDRA_"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view p) { return name.starts_with(p); });
}

}  // namespace stormo::launch
