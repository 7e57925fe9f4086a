#pragma once

#include <optional>
#include <vector>

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// Ranks on each host, in order; ranks are numbered host by host. At least one host, at least one
/// rank on each, at most plan::kMaxRanks in all.
using HostSizes = std::vector<int>;
inline int count(const HostSizes& hosts) { return static_cast<int>(hosts.size()); }

int ranks_of(const HostSizes& hosts);
/// The most ranks that one host has.
int widest(const HostSizes& hosts);
/// `ranks` over `hosts` as evenly as possible, the first hosts having one more. 1 <= hosts <=
/// ranks.
HostSizes spread_over(int ranks, int hosts);
/// The host of a rank.
int host_of(const HostSizes& hosts, Rank rank);

/// Turns a collective among hosts into one among their ranks. Each chunk of the former consists of
/// several chunks of the latter, its slices. In every host each slice belongs to one rank, its
/// leader. Between hosts the leaders of the same slice communicate; inside a host a leader
/// reduces for or copies to the other ranks.
class HostLeaders {
 public:
  /// `width` slices for each of `chunks` chunks among hosts; slice k of chunk g is chunk k * chunks
  /// + g, so that the chunks that a rank leads are contiguous. The slices are assigned to the ranks
  /// of a host in turn.
  static HostLeaders of_width(HostSizes hosts, int width, int chunks);
  /// One chunk for each rank; the chunks of a host's ranks together are a chunk among hosts. In its
  /// own host each rank leads its own chunk.
  static HostLeaders by_rank(HostSizes hosts);
  /// The same slices, but `root` leads all slices of its host.
  HostLeaders with_root(Rank root) &&;

  /// `s`, a schedule with a rank for each host, executed by the leaders of all slices at the same
  /// time. s.chunks must be the number of chunks among hosts of these slices. Name and goal of `s`.
  plan::Schedule between_hosts(const plan::Schedule& s) const;
  /// One round in which leaders send each slice to the other ranks of their host; no round when
  /// every host has one rank. The goal is set to broadcast, although it is one only within each
  /// host.
  plan::Schedule inside_hosts() const;

 private:
  Rank leader(int host, int slice) const;
  int chunks() const;

  HostSizes hosts_;
  std::vector<Rank> first_;                         // of each host
  std::vector<std::vector<plan::ChunkId>> slices_;  // by chunk among hosts
  std::optional<Rank> root_;
};

}  // namespace stormo::schedule
