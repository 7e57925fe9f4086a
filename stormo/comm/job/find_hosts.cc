// Each rank that may be on the host of rank 0 connects to it before it publishes its claims. Rank 0
// collects and publishes these. If all are connected, this is the proof, and what they hear next is
// the ticket. Else there is a second round: to which rank each has proved to be on one host.
#include <stormo/comm/job/find_hosts.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>
#include <stormo/comm/job/claims.h>
#include <stormo/comm/job/host_socket.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/transport/net/secret.h>

namespace stormo::comm {
namespace {

constexpr std::string_view kYes = "yes\n";
constexpr std::string_view kNo = "no\n";
/// For a value that has long been there.
constexpr Duration kLook = std::chrono::seconds(1);
constexpr int kInterruptLookMs = 100;

/// What rank 0 says to all: a text, or why there is none.
std::string encode(const Result<std::string>& outcome) {
  return outcome.ok() ? std::string(kYes) + *outcome
                      : std::string(kNo) + encode_failure(outcome.status());
}

Result<std::string> decode(const std::string& said) {
  if (said.starts_with(kYes)) return said.substr(kYes.size());
  if (said.starts_with(kNo)) return decode_failure(message_text(said.substr(kNo.size())));
  return Status(Code::kCorrupt, "rank 0 has said: " + printable_line(said.substr(0, 64)));
}

/// The lowest rank of a rank's host, and why it is none lower.
struct First {
  int rank = -1;
  std::string why;
};

First parse_first(std::string_view text) {
  const std::size_t blank = text.find(' ');
  First first{number_in<int>(text.substr(0, blank)).value_or(-1), {}};
  if (blank != std::string_view::npos) first.why = printable_line(text.substr(blank + 1));
  return first;
}

class HostFinder {
 public:
  HostFinder(Bulletin& bulletin, const WorldOptions& options, Deadline by)
      : bulletin_(bulletin), options_(options), by_(by) {}

  Result<Hosts> run() {
    STORMO_ASSIGN_OR_RETURN(socket_, HostSocket::open(options_.host_rendezvous_folders));
    mine_ = Claims::own(options_, socket_->path());
    STORMO_RETURN_IF_ERROR(greet_rank_0());
    STORMO_RETURN_IF_ERROR(say(kClaims, mine_.to_text()));
    STORMO_ASSIGN_OR_RETURN(const bool expected, await_rank_0());
    if (expected) return one_host();
    STORMO_RETURN_IF_ERROR(hear_claims());
    STORMO_ASSIGN_OR_RETURN(const bool all_here, look_who_is_here());
    if (all_here) return one_host();
    STORMO_ASSIGN_OR_RETURN(Hosts hosts, prove());
    if (hosts.ranks_per_host.size() > 1) return hosts;
    if (options_.rank == 0) {
      STORMO_ASSIGN_OR_RETURN(hosts.connections, socket_->connected());
    } else {
      hosts.connections.push_back(std::move(to_first_));
    }
    return hosts;
  }

 private:
  Status greet_rank_0();
  Result<bool> await_rank_0();
  Status hear_claims();
  Result<bool> look_who_is_here();
  Hosts one_host();
  Result<Hosts> prove();
  Result<First> prove_with_lowest();
  Result<std::string> decide(const std::vector<std::string>& said) const;
  Status check_secret(const std::vector<int>& firsts, const std::vector<First>& all) const;
  Status misnumbered(int rank, int first) const;

  Status say(const std::string& key, const std::string& mine) {
    return bulletin_.set(key_of(key, options_.rank), mine);
  }
  /// What rank 0 makes of what all ranks have said under this key.
  template <class Decide>
  Result<std::string> agree(const std::string& key, const Decide& decide);
  Result<std::vector<std::string>> collect(const std::string& key);
  Result<std::string> hear_outcome(const std::string& key);
  Status name_who_is_missing(const std::string& key, Duration look);
  Status missing(int rank) const {
    return {Code::kDeadlineExceeded,
            fmt::format(
                "rank {} of {} has not joined within {} s; did it start?", rank, options_.size,
                std::chrono::duration_cast<std::chrono::seconds>(options_.join_timeout).count())};
  }
  static std::string key_of(const std::string& key, int rank) {
    return fmt::format("{}/{}", key, rank);
  }
  static std::string outcome_of(const std::string& key) { return key + "/all"; }
  static constexpr const char* kClaims = "claims";
  static constexpr const char* kHost = "host";

  Bulletin& bulletin_;
  const WorldOptions& options_;
  const Deadline by_;
  std::unique_ptr<HostSocket> socket_;
  Claims mine_;
  std::vector<Claims> claims_;      // by rank
  Descriptor to_first_;             // the proof
  std::vector<Descriptor> guests_;  // of rank 0: those of the ranks that have greeted it
};

template <class Decide>
Result<std::string> HostFinder::agree(const std::string& key, const Decide& decide) {
  if (options_.rank != 0) return hear_outcome(key);
  const auto said = collect(key);
  const Result<std::string> outcome = said.ok() ? decide(*said) : said.status();
  STORMO_RETURN_IF_ERROR(bulletin_.set(outcome_of(key), encode(outcome)));
  return outcome;
}

Result<std::vector<std::string>> HostFinder::collect(const std::string& key) {
  std::vector<std::string> keys;
  for (int r = 0; r < options_.size; ++r) keys.push_back(key_of(key, r));
  auto said = bulletin_.get_all(keys, by_);
  if (said.status().code() != Code::kDeadlineExceeded) return said;
  STORMO_RETURN_IF_ERROR(name_who_is_missing(key, Duration::zero()));
  return said;
}

/// Without an error all have said something under this key.
Status HostFinder::name_who_is_missing(const std::string& key, Duration look) {
  for (int r = 0; r < options_.size; ++r) {
    const auto there = bulletin_.get(key_of(key, r), Deadline::after(look));
    if (there.status().code() == Code::kDeadlineExceeded) return missing(r);
    STORMO_RETURN_IF_ERROR(there.status());
  }
  return {};
}

Result<std::string> HostFinder::hear_outcome(const std::string& key) {
  const auto said = bulletin_.get(outcome_of(key), by_);
  if (said.ok()) return decode(*said);
  if (said.status().code() != Code::kDeadlineExceeded) return said.status();
  STORMO_RETURN_IF_ERROR(name_who_is_missing(key, kLook));
  return Status(Code::kDeadlineExceeded,
                "all ranks have come, but rank 0 has said no more; is it stopped?");
}

/// Connects to rank 0 and tells it who this is, if they may be on one host.
Status HostFinder::greet_rank_0() {
  if (options_.rank == 0) return {};
  const auto said = bulletin_.get(key_of(kClaims, 0), by_);
  if (said.status().code() == Code::kDeadlineExceeded) return missing(0);
  STORMO_RETURN_IF_ERROR(said.status());
  STORMO_ASSIGN_OR_RETURN(const std::vector<Claims> first, parse_claims(*said, 1));
  if (!difference(first.front(), mine_).empty()) return {};
  auto reached = connect_to_host_socket(first.front().socket);
  if (!reached.ok()) return {};  // the second round says why
  to_first_ = std::move(*reached);
  // less than a socket's buffer
  static_cast<void>(
      ::send(to_first_.get(), mine_.socket.data(), mine_.socket.size(), MSG_NOSIGNAL));
  return {};
}

/// Whether rank 0 says something over the connection. False when it ends the connection, as it does
/// in any case but that of one host, or when there is none.
Result<bool> HostFinder::await_rank_0() {
  while (to_first_.valid() && !by_.expired()) {
    pollfd readable{to_first_.get(), POLLIN, 0};
    if (::poll(&readable, 1, kInterruptLookMs) > 0) {
      char first = 0;
      return ::recv(to_first_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
    }
    // who waits in the Bulletin can be interrupted
    const auto said = bulletin_.get(outcome_of(kClaims), Deadline::after(Duration::zero()));
    if (!said.ok() && said.status().code() != Code::kDeadlineExceeded) return said.status();
  }
  return false;
}

Status HostFinder::hear_claims() {
  const auto join_lines = [](const std::vector<std::string>& said) -> Result<std::string> {
    for (const std::string& text : said) STORMO_RETURN_IF_ERROR(parse_claims(text, 1).status());
    return fmt::format("{}", fmt::join(said, ""));
  };
  STORMO_ASSIGN_OR_RETURN(const std::string text, agree(kClaims, join_lines));
  STORMO_ASSIGN_OR_RETURN(claims_, parse_claims(text, options_.size));
  const Claims& heard = claims_[static_cast<std::size_t>(options_.rank)];
  if (heard == mine_) return {};
  return invalid_argument(fmt::format("two processes claim to be rank {}: {} and {}", options_.rank,
                                      heard.name(), mine_.name()));
}

/// By rank 0: whether all others have greeted it. Each has done so before it published its claims.
Result<bool> HostFinder::look_who_is_here() {
  if (options_.rank != 0) return false;
  STORMO_ASSIGN_OR_RETURN(std::vector<Descriptor> visitors, socket_->connected());
  for (Descriptor& visitor : visitors) {
    std::array<char, 128> text{};
    const ssize_t n = ::recv(visitor.get(), text.data(), text.size(), MSG_DONTWAIT);
    const std::string_view socket(text.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    const bool is_rank = std::any_of(claims_.begin() + 1, claims_.end(),
                                     [&](const Claims& c) { return c.socket == socket; });
    if (is_rank) guests_.push_back(std::move(visitor));
  }
  if (guests_.size() == claims_.size() - 1) return true;
  guests_.clear();
  return false;
}

Hosts HostFinder::one_host() {
  Hosts hosts{.ranks_per_host = {options_.size}, .id = {}, .connections = std::move(guests_)};
  if (options_.rank != 0) hosts.connections.push_back(std::move(to_first_));
  return hosts;
}

/// Of those on one host all find the same one: whom the lowest can reach, the others can.
Result<First> HostFinder::prove_with_lowest() {
  const bool has_greeted = to_first_.valid();
  First first{options_.rank, {}};
  const Claims& mine = claims_[static_cast<std::size_t>(options_.rank)];
  for (int r = 0; r < options_.rank; ++r) {
    const Claims& other = claims_[static_cast<std::size_t>(r)];
    std::string why = difference(other, mine);
    if (why.empty()) {
      auto reached = connect_to_host_socket(other.socket);
      if (reached.ok()) {
        to_first_ = std::move(*reached);
        return First{r, {}};
      }
      if (r == 0 && has_greeted) {
        return Status(Code::kPeerLost, "rank 0 ended before the job's store had started");
      }
      why = "it cannot be reached: " + reached.status().message();
    }
    if (first.why.empty()) first.why = fmt::format("not on the host of rank {}: {}", r, why);
  }
  return first;
}

Result<Hosts> HostFinder::prove() {
  STORMO_ASSIGN_OR_RETURN(const First mine, prove_with_lowest());
  STORMO_RETURN_IF_ERROR(say(kHost, fmt::format("{} {}", mine.rank, mine.why)));
  STORMO_ASSIGN_OR_RETURN(
      const std::string outcome,
      agree(kHost, [this](const std::vector<std::string>& said) { return decide(said); }));
  Hosts hosts;
  const std::vector<std::string_view> words = split(outcome, ' ');
  hosts.id = words.empty() ? std::string_view() : words.front();
  bool right =
      !hosts.id.empty() && hosts.id.find_first_not_of("0123456789abcdef") == std::string::npos;
  int ranks = 0;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const int here = number_in<int>(words[i]).value_or(0);
    right = right && here >= 1 && here <= options_.size - ranks;
    ranks += right ? here : 0;
    hosts.ranks_per_host.push_back(here);
  }
  const bool proved = to_first_.valid() || options_.rank == 0;
  right = right && ranks == options_.size && (proved || hosts.ranks_per_host.size() > 1);
  if (right) return hosts;
  return Status(Code::kCorrupt, "rank 0 has said of the hosts: " + printable_line(outcome));
}

/// "ID 2 2": the ranks of each host.
Result<std::string> HostFinder::decide(const std::vector<std::string>& said) const {
  std::vector<First> all;
  std::vector<int> firsts;
  std::vector<int> ranks;
  for (int r = 0; r < options_.size; ++r) {
    all.push_back(parse_first(said[static_cast<std::size_t>(r)]));
    const int first = all.back().rank;
    if (first == r) {
      firsts.push_back(r);
      ranks.push_back(1);
    } else if (!firsts.empty() && first == firsts.back()) {
      ++ranks.back();
    } else {
      return misnumbered(r, first);
    }
  }
  if (firsts.size() > 1) STORMO_RETURN_IF_ERROR(check_secret(firsts, all));
  const std::string id = transport::Secret::random().to_hex().substr(0, 16);
  return fmt::format("{} {}", id, fmt::join(ranks, " "));
}

Status HostFinder::misnumbered(int rank, int first) const {
  if (first < 0 || first > rank) {
    return {Code::kCorrupt, fmt::format("rank {} names no rank of its host", rank)};
  }
  return invalid_argument(fmt::format(
      "rank {} is on the host of rank {} ({}), but rank {} is not ({}): ranks must be numbered "
      "host "
      "by host; torchrun does so, Slurm with --distribution=block, mpirun with --map-by slot",
      rank, first, claims_[static_cast<std::size_t>(rank)].host, rank - 1,
      claims_[static_cast<std::size_t>(rank - 1)].host));
}

/// Between hosts nothing proves who asks for the secret.
Status HostFinder::check_secret(const std::vector<int>& firsts,
                                const std::vector<First>& all) const {
  const int second = firsts[1];
  const auto several = fmt::format("the ranks are on {} hosts (rank {} is {})", firsts.size(),
                                   second, all[static_cast<std::size_t>(second)].why);
  for (int r = 0; r < options_.size; ++r) {
    const std::string& by = claims_[static_cast<std::size_t>(r)].secret_by;
    if (by != kBySharedFile && by != kByTrust) {
      return {Code::kRefused,
              fmt::format("{}, and the store in which they meet authenticates nobody, so rank {} "
                          "takes no secret from it; set STORMO_RENDEZVOUS=file:PATH on all ranks, "
                          "with a file on a file system that all hosts share, or, if nobody else "
                          "can reach the store, trust_store=True (STORMO_TRUST_STORE=1)",
                          several, r)};
    }
    if (by != claims_.front().secret_by) {
      return invalid_argument(
          fmt::format("{}: rank 0 has STORMO_{}, rank {} has STORMO_{}; set the same on all ranks",
                      several, claims_.front().secret_by == kByTrust ? "TRUST_STORE" : "RENDEZVOUS",
                      r, by == kByTrust ? "TRUST_STORE" : "RENDEZVOUS"));
    }
  }
  if (!options_.interface.empty()) return {};
  if (options_.find_interface && !options_.find_interface().empty()) return {};
  return invalid_argument(
      fmt::format("{}, and the host of rank 0 has several network interfaces, or none: set "
                  "STORMO_INTERFACE to the one by which the other hosts reach it",
                  several));
}

}  // namespace

Result<Hosts> find_hosts(Bulletin& bulletin, const WorldOptions& options, Deadline by) {
  return HostFinder(bulletin, options, by).run();
}

}  // namespace stormo::comm
