#include <cli/bench/mpi.h>

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <stormo/base/file.h>

namespace stormo::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::array<MpiOpponent, 3> kOpponents = {{
    {"openmpi", "install libopenmpi-dev and openmpi-bin, configure and build again"},
    {"mpich", "install libmpich-dev and mpich, configure and build again"},
    {"intelmpi", "run tools/setup.sh bench or set STORMO_INTELMPI, configure and build again"},
}};

/// A program by which mpirun reaches a host: it is called with the host and one command line.
Result<std::string> remote_agent(const BenchSite& site) {
  const std::string path = site.scratch + "/remote_agent";
  std::ofstream file(path);
  file << "#!/bin/sh\nhost=$1\nshift\nexec";
  std::istringstream words(site.launch.remote_shell);
  for (std::string word; words >> word;)
    file << (word == "{host}" ? " \"$host\"" : " '" + word + "'");
  if (site.namespaces)  // by a name of its own, or its shared memory takes that of its neighbours
    file << " unshare --uts sh -c \"hostname $host; $*\"\n";
  else
    file << " \"$*\"\n";
  file.close();
  std::error_code failed;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all, failed);
  if (!file || failed) return io_error("write " + path);
  return path;
}

/// How hydra, the launcher of both, starts ranks of this host.
Words hydra_words(const BenchSite& site, const std::string& launcher) {
  Words words = {launcher, "-launcher", "fork", "-n", std::to_string(site.ranks)};
  append(words, {"-bind-to", site.ranks > site.cores ? "none" : "core"});
  return words;
}

/// Intel MPI binds by variables; where ranks share a core they give it away by themselves.
void describe_intelmpi(const BenchSite& site, const std::string& launcher, ChildCommand& command) {
  const std::filesystem::path root = std::filesystem::path(launcher).parent_path().parent_path();
  command.words = {launcher, "-launcher", "fork", "-n", std::to_string(site.ranks)};
  command.environment = {{"I_MPI_ROOT", root.string()}, {"I_MPI_FABRICS", "shm"}};
}

Result<ChildCommand> describe_openmpi(const BenchSite& site, const std::string& launcher) {
  ChildCommand command{.words = {launcher, "-n", std::to_string(site.ranks)}, .environment = {}};
  if (!site.launch.hosts.empty()) {
    STORMO_ASSIGN_OR_RETURN(const std::string agent, remote_agent(site));
    append(command.words, {"--host", site.launch.hosts, "--mca", "plm_rsh_agent", agent, "--mca",
                           "plm_rsh_no_tree_spawn", "1"});
  }
  append(command.words, openmpi_flags(site));
  if (site.root)
    command.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  return command;
}

}  // namespace

const MpiOpponent* find_mpi_opponent(const std::string& name) {
  for (const MpiOpponent& opponent : kOpponents)
    if (name == opponent.name) return &opponent;
  return nullptr;
}

std::vector<std::string> openmpi_flags(const BenchSite& site) {
  const bool shares_cores = site.hosts == 1 || site.namespaces;
  Words flags = {"--mca", "pml", "ob1",
                 "--mca", "btl", site.hosts > 1 ? "self,vader,tcp" : "self,vader"};
  if (shares_cores && (site.hosts > 1 || site.ranks > site.cores))
    append(flags, {"--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"});
  else
    append(flags, {"--bind-to", "core"});
  if (site.hosts > 1 && !site.launch.interface.empty())
    append(flags, {"--mca", "btl_tcp_if_include", last_interface(site.launch.interface), "--mca",
                   "oob_tcp_if_include", site.launch.interface});
  return flags;
}

Result<Contender> mpi_contender(const MpiOpponent& opponent, const BenchSite& site,
                                const BenchOptions& options) {
  const std::string name = opponent.name;
  const std::string program = fmt::format("{}/{}_bench", site.tools, name);
  const std::string launcher = first_line(program + ".launcher");
  if (::access(program.c_str(), X_OK) != 0)
    return invalid_argument(fmt::format("{}: {} is missing; {}", name, program, opponent.install));
  if (::access(launcher.c_str(), X_OK) != 0)
    return invalid_argument(
        fmt::format("{}: its launcher '{}', named by {}.launcher, is missing; {}", name, launcher,
                    program, opponent.install));
  if (options.dtype == DType::kBFloat16 || options.dtype == DType::kFloat16)
    return invalid_argument(
        fmt::format("{}: MPI has no {}; compare float32", name, to_string(options.dtype)));
  if (name != "openmpi" && !site.launch.hosts.empty())
    return invalid_argument(fmt::format("{}: only on one host; between hosts take openmpi", name));
  Contender c{.name = name};
  if (name == "openmpi") {
    STORMO_ASSIGN_OR_RETURN(c.command, describe_openmpi(site, launcher));
  } else if (name == "intelmpi") {
    describe_intelmpi(site, launcher, c.command);
  } else {
    c.command.words = hydra_words(site, launcher);
  }
  c.command.words.push_back(program);
  append(c.command.words, arguments_of_bench(options));
  return c;
}

}  // namespace stormo::cli
