#include <stormo/membership/register_address.h>

#include <fmt/format.h>
#include <stormo/base/text.h>
#include <stormo/membership/etcd_register.h>
#include <stormo/membership/quorum_register.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace stormo::membership {
namespace {

constexpr std::string_view kQuorum = "quorum://", kEtcd = "etcd://";
constexpr std::uint16_t kEtcdPort = 2379;
constexpr std::size_t kMaxAcceptors = 3;

/// HOST:PORT,HOST:PORT. Without `default_port` each needs its own. Appends to `wrong`.
std::vector<transport::HostPort> hosts_in(std::string_view text, std::uint16_t default_port,
                                          std::vector<std::string>& wrong) {
  std::vector<transport::HostPort> hosts;
  for (const std::string_view part : split(text, ',')) {
    Result<transport::HostPort> host = transport::parse_host_port(part);
    if (!host.ok()) {
      wrong.push_back(host.status().message());
      continue;
    }
    if (host->port == 0) host->port = default_port;
    if (host->port == 0) wrong.push_back(fmt::format("'{}' has no port; write HOST:PORT", part));
    hosts.push_back(*std::move(host));
  }
  if (text.empty()) wrong.emplace_back("it has no host");
  return hosts;
}

Status all_of(std::string_view address, const std::vector<std::string>& wrong) {
  if (wrong.empty()) return {};
  // without what may be a password
  if (const std::size_t at = address.find('@'); at != std::string_view::npos) {
    address.remove_prefix(at + 1);
  }
  return invalid_argument(fmt::format("the register '{}': {}", address, fmt::join(wrong, "; ")));
}

Result<std::unique_ptr<Register>> open_quorum(std::string_view address,
                                              const RegisterAccess& access) {
  std::vector<std::string> wrong;
  QuorumRegister::Options options{.acceptors = hosts_in(address.substr(kQuorum.size()), 0, wrong),
                                  .secret = access.secret};
  if (options.acceptors.size() > kMaxAcceptors) {
    wrong.push_back(fmt::format("it has at most {} acceptors", kMaxAcceptors));
  }
  STORMO_RETURN_IF_ERROR(all_of(address, wrong));
  return std::unique_ptr<Register>(std::make_unique<QuorumRegister>(std::move(options)));
}

#ifdef STORMO_HAVE_ETCD
Result<std::unique_ptr<Register>> open_etcd(std::string_view address,
                                            const RegisterAccess& access) {
  std::string_view rest = address.substr(kEtcd.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view prefix = slash + 1 < rest.size() ? rest.substr(slash) : "/stormo";
  rest = rest.substr(0, slash);
  EtcdRegister::Options options{.key = fmt::format("{}/{}", prefix, access.job),
                                .password = access.password};
  std::vector<std::string> wrong;
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    options.user = rest.substr(0, at);
    rest.remove_prefix(at + 1);
    if (options.user.empty()) wrong.emplace_back("there is no user before '@'");
    if (options.user.find(':') != std::string::npos) {
      wrong.emplace_back("a password does not belong into an address");
    }
  }
  options.endpoints = hosts_in(rest, kEtcdPort, wrong);
  STORMO_RETURN_IF_ERROR(all_of(address, wrong));
  return std::unique_ptr<Register>(std::make_unique<EtcdRegister>(std::move(options)));
}
#else
Result<std::unique_ptr<Register>> open_etcd(std::string_view address, const RegisterAccess&) {
  return all_of(address, {"this Stormo was built without libcurl, by which it asks etcd; install "
                          "libcurl4-openssl-dev, and configure with -DSTORMO_CURL=ON"});
}
#endif

}  // namespace

Result<std::unique_ptr<Register>> open_register(std::string_view address,
                                                const RegisterAccess& access) {
  if (address.starts_with(kQuorum)) return open_quorum(address, access);
  if (address.starts_with(kEtcd)) return open_etcd(address, access);
  return all_of(address, {"write quorum://HOST:PORT,HOST:PORT,HOST:PORT for the job's own, or "
                          "etcd://HOST:PORT,HOST:PORT/PREFIX for that of the site"});
}

}  // namespace stormo::membership
