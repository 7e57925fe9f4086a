// In two rounds rank 0 collects what each rank says and publishes it: first claims, then to which
// rank each has proved to be on one host.
#include <stormo/comm/job/find_hosts.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
    STORMO_RETURN_IF_ERROR(hear_claims());
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
  Status hear_claims();
  Result<Hosts> prove();
  First prove_with_lowest();
  Result<std::string> decide(const std::vector<std::string>& said) const;
  Status check_secret(const std::vector<int>& firsts, const std::vector<First>& all) const;
  Status misnumbered(int rank, int first) const;

  /// Of each rank what it has said under this key, by rank 0; else what rank 0 makes of it.
  template <class Decide>
  Result<std::string> agree(const std::string& key, const std::string& mine, const Decide& decide);
  Result<std::vector<std::string>> collect(const std::string& key);
  Result<std::string> hear_outcome(const std::string& key);
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

  Bulletin& bulletin_;
  const WorldOptions& options_;
  const Deadline by_;
  std::unique_ptr<HostSocket> socket_;
  std::vector<Claims> claims_;  // by rank
  Descriptor to_first_;         // the proof
};

template <class Decide>
Result<std::string> HostFinder::agree(const std::string& key, const std::string& mine,
                                      const Decide& decide) {
  STORMO_RETURN_IF_ERROR(bulletin_.set(key_of(key, options_.rank), mine));
  if (options_.rank != 0) return hear_outcome(key);
  const auto said = collect(key);
  const Result<std::string> outcome = said.ok() ? decide(*said) : said.status();
  STORMO_RETURN_IF_ERROR(bulletin_.set(outcome_of(key), encode(outcome)));
  return outcome;
}

Result<std::vector<std::string>> HostFinder::collect(const std::string& key) {
  std::vector<std::string> said;
  for (int r = 0; r < options_.size; ++r) {
    auto got = bulletin_.get(key_of(key, r), by_);
    if (got.status().code() == Code::kDeadlineExceeded) return missing(r);
    STORMO_ASSIGN_OR_RETURN(std::string text, std::move(got));
    said.push_back(std::move(text));
  }
  return said;
}

Result<std::string> HostFinder::hear_outcome(const std::string& key) {
  const auto said = bulletin_.get(outcome_of(key), by_);
  if (said.ok()) return decode(*said);
  if (said.status().code() != Code::kDeadlineExceeded) return said.status();
  for (int r = 0; r < options_.size; ++r) {
    const auto there = bulletin_.get(key_of(key, r), Deadline::after(kLook));
    if (there.status().code() == Code::kDeadlineExceeded) return missing(r);
    if (!there.ok()) return there.status();
  }
  return Status(Code::kDeadlineExceeded,
                "all ranks have come, but rank 0 has said no more; is it stopped?");
}

Status HostFinder::hear_claims() {
  const Claims mine = Claims::own(options_, socket_->path());
  const auto join_lines = [](const std::vector<std::string>& said) -> Result<std::string> {
    for (const std::string& text : said) STORMO_RETURN_IF_ERROR(parse_claims(text, 1).status());
    return fmt::format("{}", fmt::join(said, ""));
  };
  STORMO_ASSIGN_OR_RETURN(const std::string text, agree("claims", mine.to_text(), join_lines));
  STORMO_ASSIGN_OR_RETURN(claims_, parse_claims(text, options_.size));
  const Claims& heard = claims_[static_cast<std::size_t>(options_.rank)];
  if (heard == mine) return {};
  return invalid_argument(fmt::format("two processes claim to be rank {}: {} and {}", options_.rank,
                                      heard.name(), mine.name()));
}

/// Of those on one host all find the same one: whom the lowest can reach, the others can.
First HostFinder::prove_with_lowest() {
  First first{options_.rank, {}};
  const Claims& mine = claims_[static_cast<std::size_t>(options_.rank)];
  for (int r = 0; r < options_.rank; ++r) {
    const Claims& other = claims_[static_cast<std::size_t>(r)];
    std::string why = difference(other, mine);
    if (why.empty()) {
      auto reached = connect_to_host_socket(other.socket);
      if (reached.ok()) {
        to_first_ = std::move(*reached);
        return {r, {}};
      }
      why = "it cannot be reached: " + reached.status().message();
    }
    if (first.why.empty()) first.why = fmt::format("not on the host of rank {}: {}", r, why);
  }
  return first;
}

Result<Hosts> HostFinder::prove() {
  const First mine = prove_with_lowest();
  STORMO_ASSIGN_OR_RETURN(
      const std::string outcome,
      agree("host", fmt::format("{} {}", mine.rank, mine.why),
            [this](const std::vector<std::string>& said) { return decide(said); }));
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
