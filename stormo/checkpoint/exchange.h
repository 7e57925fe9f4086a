#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::checkpoint {

/// A collective: sets `text` on every rank to that of `root`.
Status broadcast_text(comm::Communicator& world, std::string& text, Rank root = 0);

/// A collective: returns the texts of all ranks, by rank, on rank 0; empty on other ranks.
Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& text);

/// A collective: returns rank 0's value or failure on every rank.
Result<std::string> broadcast_outcome(comm::Communicator& world, const Result<std::string>& mine);

/// Encodes a text or a failure as one text, for sending.
std::string encode_outcome(const Result<std::string>& outcome);
Result<std::string> decode_outcome(const std::string& text);

}  // namespace stormo::checkpoint
