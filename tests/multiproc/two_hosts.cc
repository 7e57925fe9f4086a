#include "two_hosts.h"

#include <unistd.h>

#include "process.h"

namespace stormo::testing {

TwoHosts::TwoHosts(bool v6) {
  if (::geteuid() != 0) {
    problem_ = "network namespaces need root";
    return;
  }
  const int pid = ::getpid();
  const std::string id = std::to_string(pid % 10000);
  bridge_ = "stb" + id;
  const std::string net =
      v6 ? "fd5e:" + id + "::"
         : "10." + std::to_string(100 + pid / 250 % 100) + "." + std::to_string(pid % 250) + ".";
  const std::string bits = v6 ? "/64 nodad" : "/24";
  std::string script = "set -e; ip link add " + bridge_ + " type bridge; ip link set " + bridge_ +
                       " up; ip addr add " + net + "1" + bits + " dev " + bridge_ + ";";
  for (int i = 0; i < 2; ++i) {
    const std::string n = std::to_string(i);
    hosts_[i] = "sth" + n + "-" + id;
    const std::string in = "ip -n " + hosts_[i] + " ";
    script += "ip netns add " + hosts_[i] + "; ip link add stv" + n + id +
              " type veth peer name eth0 netns " + hosts_[i] + "; ip link set stv" + n + id +
              " master " + bridge_ + " up;" + in + "link set lo up;" + in + "link set eth0 up;" +
              in + "addr add " + net + std::to_string(i + 2) + bits + " dev eth0;";
  }
  const Outcome o = run_to_end({"/bin/sh", "-c", script});
  if (o.status == 0) return;
  take_down();
  problem_ = "cannot make network namespaces: " + o.err;
}

TwoHosts::~TwoHosts() {
  if (!bridge_.empty()) take_down();
}

void TwoHosts::take_down() {
  std::string script = "ip link del " + bridge_;
  for (const std::string& host : hosts_) {
    // with its namespace the link would go as well, but some time later
    script += "; ip -n " + host + " link del eth0; ip netns del " + host;
  }
  run_to_end({"/bin/sh", "-c", script});
  bridge_.clear();
}

}  // namespace stormo::testing
