#include "tests/conformance/etcd_cluster.h"

#include <stormo/http/http_post.h>
#include <stormo/membership/etcd_register.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>

#include "tests/conformance/register_records.h"

namespace stormo::membership::test {
namespace {

std::string url(const transport::HostPort& at) { return "http://" + transport::to_string(at); }
std::string name_of(std::size_t member) { return "member" + std::to_string(member); }

}  // namespace

std::string etcd_program() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string program = folder + "/etcd";
    if (std::filesystem::is_regular_file(program)) return program;
  }
  return {};
}

EtcdCluster::EtcdCluster(int count) : members_(static_cast<std::size_t>(count)) {
  for (int tries = 0; tries < 5; ++tries) {
    choose_ports();
    for (int i = 0; i < count; ++i) start(i, "new");
    if (wait_until_up()) return;
    // somebody else has taken a port
    for (Member& m : members_) m.process.reset();
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      std::filesystem::remove_all(entry);
    }
  }
  throw std::runtime_error("no etcd could be started: " + why_);
}

std::vector<transport::HostPort> EtcdCluster::endpoints() const {
  std::vector<transport::HostPort> all;
  for (const Member& m : members_) all.push_back(m.client);
  return all;
}

std::unique_ptr<Register> EtcdCluster::client(const std::string& key) const {
  return std::make_unique<EtcdRegister>(
      EtcdRegister::Options{.endpoints = endpoints(), .key = key});
}

std::string EtcdCluster::post(int i, const std::string& path, const std::string& json) const {
  return http::http_post({.url = url(member(i).client) + path, .body = json},
                         std::chrono::seconds(30))
      .body;
}

int EtcdCluster::leader(int asked) const {
  const auto ask = [&](const char* path) {
    return nlohmann::json::parse(post(asked, path, "{}"), nullptr, false);
  };
  const auto id = ask("/v3/maintenance/status")["leader"];
  const auto members = ask("/v3/cluster/member/list")["members"];
  for (const auto& m : members) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (m["ID"] == id && m["peerURLs"][0] == url(members_[i].peer)) return static_cast<int>(i);
    }
  }
  throw std::runtime_error("no member is the leader " + id.dump());
}

/// Not of those that the system gives to connections: a member that is restarted needs its own.
void EtcdCluster::choose_ports() {
  std::random_device random;
  std::vector<Descriptor> taken;
  const auto choose = [&]() -> transport::HostPort {
    const auto first = static_cast<std::uint16_t>(15000 + random() % 10000);
    taken.push_back(transport::listen_tcp({.host = "127.0.0.1"}, {first, 32000}).take_or_throw());
    return transport::parse_host_port(
               transport::local_address_of(taken.back().get()).take_or_throw().to_string())
        .take_or_throw();
  };
  for (Member& m : members_) m = {choose(), choose(), nullptr};
}

void EtcdCluster::start(int i, const std::string& state) {
  std::string cluster;
  for (std::size_t of = 0; of < members_.size(); ++of) {
    cluster += (of == 0 ? "" : ",") + name_of(of) + "=" + url(members_[of].peer);
  }
  Member& m = member(i);
  const std::string name = name_of(static_cast<std::size_t>(i)), folder = folder_.path() / name;
  std::vector<std::string> argv{"/bin/sh", "-c", "exec \"$@\" >>\"$0.log\" 2>&1", folder,
                                etcd_program()};
  for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{
           {"--name", name},
           {"--data-dir", folder},
           {"--initial-cluster", cluster},
           {"--initial-cluster-state", state},
           {"--listen-client-urls", url(m.client)},
           {"--advertise-client-urls", url(m.client)},
           {"--listen-peer-urls", url(m.peer)},
           {"--initial-advertise-peer-urls", url(m.peer)}}) {
    argv.insert(argv.end(), {flag, value});
  }
  m.process = std::make_unique<testing::Process>(std::move(argv));
}

bool EtcdCluster::wait_until_up() {
  const Deadline by = soon();
  const auto reg = client();
  while (!by.expired()) {
    const auto present = reg->read(Deadline::after(std::chrono::milliseconds(500)));
    if (present.ok()) return true;
    why_ = present.status().message();
    for (const Member& m : members_) {
      if (m.process->wait_unread(std::chrono::nanoseconds(0)) >= 0) return false;
    }
  }
  return false;
}

}  // namespace stormo::membership::test
