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

/// Turns a collective among hosts into one among their ranks. Each chunk of the former consists of
/// several chunks of the latter, its lanes. In every host each lane belongs to one rank, its
/// carrier. Between hosts the carriers of the same lane communicate; inside a host a carrier
/// reduces for or copies to the other ranks.
class HostLanes {
 public:
  /// `width` lanes for each of `chunks` chunks among hosts; lane l of chunk g is chunk l * chunks +
  /// g, so that the chunks that a rank carries are contiguous. The lanes are assigned to the ranks
  /// of a host in turn.
  static HostLanes of_width(HostSizes hosts, int width, int chunks);
  /// One chunk for each rank; the chunks of a host's ranks together are a chunk among hosts. In its
  /// own host each rank carries its own chunk.
  static HostLanes by_rank(HostSizes hosts);
  /// The same lanes, but `root` carries all lanes of its host.
  HostLanes carried_by(Rank root) &&;

  /// `s`, a schedule with a rank for each host, executed by the carriers of all lanes at the same
  /// time. s.chunks must be the number of chunks among hosts of these lanes. Name and goal of `s`.
  plan::Schedule between_hosts(const plan::Schedule& s) const;
  /// One round in which carriers send each lane to the other ranks of their host; no round when
  /// every host has one rank. The goal is set to broadcast, although it is one only within each
  /// host.
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
