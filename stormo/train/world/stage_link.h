#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Sends tensors from one stage of a pipeline to another. For one rank; its peers are the other
/// stages of its own pipeline.
///
/// In a host a tensor is not copied, if its elements lie in the Arena and follow each other: the
/// receiver reads them where the sender wrote them. The sender keeps the tensor until the receiver
/// has dropped it. Between hosts, and where the ranks of a host share no memory, it is sent in the
/// background.
///
/// A sender never waits for the receiver. The key of a tensor is the tag of its messages, so the
/// two ends of a pair may call in any order. One thread.
class StageLink {
 public:
  /// Names a tensor among those that are under way between two stages.
  using Key = std::uint64_t;
  static constexpr Key kMaxKey = (Key{1} << 30) - 1;

  /// `stages` is the group of the stages of one pipeline; its rank s is stage s. Borrowed.
  explicit StageLink(comm::Communicator& stages);
  /// Waits until peers have dropped what this rank sent, unless the group has failed.
  ~StageLink();
  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  int stage() const { return stages_.rank(); }
  int num_stages() const { return stages_.size(); }

  /// `x` may be undefined, and is received as such; its values must not change until the receiver
  /// has dropped it. `like`: numbers, equal at both ends, that decide the shape of the tensor with
  /// this key; so a shape has to travel once only. Does not wait.
  Status send(int to, Key key, const torch::Tensor& x, torch::IntArrayRef like);
  /// The tensor with this key will be received. Does not wait.
  Status expect(int from, Key key, torch::IntArrayRef like);
  /// Blocks until an expected tensor is there. In a host it is the sender's memory: read only.
  Result<torch::Tensor> receive(int from, Key key);
  /// Receives and drops what was expected, but not received.
  Status drain();

  /// Bytes of tensors that this rank sent in its host: those that were copied, and those that were
  /// not.
  std::uint64_t bytes_copied() const { return bytes_copied_; }
  std::uint64_t bytes_shared() const { return bytes_shared_; }

 private:
  static constexpr std::size_t kMaxDimensions = 12;
  /// What a receiver has to know of a tensor. In a host it also says where the elements are.
  struct Header {
    std::uint64_t elements_at = 0;  ///< offset in the sender's Arena
    std::uint64_t dropped_at = 0;   ///< likewise, of the word that the receiver sets
    std::int32_t type = -1;         ///< torch::ScalarType; -1: undefined
    std::int32_t dimensions = 0;
    std::array<std::int64_t, kMaxDimensions> sizes = {};
    bool operator==(const Header&) const = default;
  };
  using Word = std::atomic<std::uint32_t>;
  /// What a peer of this host may still read.
  struct Lent {
    torch::Tensor tensor;
    Word* dropped;
  };
  using Shape = std::pair<Key, std::vector<std::int64_t>>;
  /// Between hosts it is being received: the elements, or first the header.
  struct Expected {
    Shape shape = {};
    Header header = {};
    torch::Tensor elements = {};
    comm::Work work = {};
  };
  struct Peer {
    std::map<Key, Expected> expected;
    // between hosts: what both ends know already
    std::map<Shape, Header> sent, received;
  };
  /// What is on its way. It has an address of its own.
  struct Sending {
    torch::Tensor tensor;
    Header header;
    comm::Work work;
  };

  Peer& peer(int stage) { return peers_[static_cast<std::size_t>(stage)]; }
  bool in_host(int stage) const;
  Status lend(int to, Key key, Header header, const torch::Tensor& x);
  Status send_far(int to, Key key, const Header& header, const torch::Tensor& x,
                  torch::IntArrayRef like);
  void send_header(int to, Key key, const Header& header);
  void post_elements(int from, Key key, Expected& expected);
  Result<torch::Tensor> receive_far(int from, Key key, Expected& expected);
  torch::Tensor borrow(int from, const Header& header) const;
  Result<torch::Tensor> in_arena(const torch::Tensor& x);
  void free_dropped();
  Status forget_sent();

  comm::Communicator& stages_;
  bool shares_memory_;        // inside of a host; engines over other libraries do not
  std::vector<int> host_of_;  // by stage
  std::vector<Peer> peers_;   // by stage
  std::list<Lent> lent_;
  std::list<Sending> sending_;
  std::uint64_t bytes_copied_ = 0, bytes_shared_ = 0;
};

}  // namespace stormo::train
