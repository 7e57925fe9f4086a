#pragma once

#include <optional>
#include <vector>

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// Ranks on each host, in order; ranks are numbered host by host. At least one host, at least one
/// rank on each, at most plan::kMaxRanks in all.
using HostSizes = std::vector<int>;

int ranks_of(const HostSizes& hosts);
/// The most ranks that one host has.
int widest(const HostSizes& hosts);
/// `ranks` over `hosts` as evenly as possible, the first hosts having one more. 1 <= hosts <=
/// ranks.
HostSizes spread_over(int ranks, int hosts);
/// The host of a rank.
int host_of(const HostSizes& hosts, Rank rank);

/// What makes a collective among hosts one among their ranks: each chunk of the former consists of
/// chunks of the latter, its lanes, and in every host each lane is the business of one rank, its
/// carrier. Carriers of equal lanes talk between hosts; inside a host a carrier speaks for the
/// others.
class HostLanes {
 public:
  /// `width` lanes for each of `chunks` chunks among hosts; lane l of chunk g is chunk l * chunks +
  /// g, so that what a rank carries is in one piece. The carriers are a host's ranks in turn.
  static HostLanes of_width(HostSizes hosts, int width, int chunks);
  /// A chunk for each rank, of which those of a host's ranks are a chunk among hosts. In its own
  /// host a rank carries its own.
  static HostLanes by_rank(HostSizes hosts);
  /// The same lanes; `root` carries all of its host.
  HostLanes carried_by(Rank root) &&;

  /// `s`, a schedule with a rank for each host, run by the carriers of all lanes at once. s.chunks
  /// must be as many as these lanes were made for. Name and goal of `s`.
  plan::Schedule between_hosts(const plan::Schedule& s) const;
  /// One round in which carriers give each lane to the other ranks of their host; none when every
  /// host has one rank. Goal: broadcast, which it only is within each host.
  plan::Schedule inside_hosts() const;

 private:
  Rank carrier(int host, int lane) const;
  int chunks() const;

  HostSizes hosts_;
  std::vector<Rank> first_;                        // of each host
  std::vector<std::vector<plan::ChunkId>> lanes_;  // by chunk among hosts
  std::optional<Rank> root_;
};

}  // namespace stormo::schedule
