#include <stormo/checkpoint/format/piece.h>

#include <algorithm>

#include <stormo/checkpoint/file/safetensors_header.h>
#include <stormo/checkpoint/format/box.h>

namespace stormo::checkpoint {

std::size_t bytes_of(const Piece& piece) {
  const std::int64_t elements =
      piece.box ? num_elements(piece.box->sizes).value_or(0) : piece.end - piece.begin;
  return static_cast<std::size_t>(elements) * safetensors_dtype_bytes(piece.dtype).value_or(0);
}

Status check_piece(const Piece& piece) {
  const auto elements = num_elements(piece.shape);
  if (!safetensors_dtype_bytes(piece.dtype)) {
    return invalid_argument("tensor '" + piece.name + "': dtype '" + piece.dtype +
                            "' cannot be stored");
  }
  if (piece.box) {
    const bool fits =
        elements && num_elements(piece.box->sizes) && is_inside(*piece.box, piece.shape);
    return fits ? ok_status()
                : invalid_argument("tensor '" + piece.name + "': a box is not inside its shape");
  }
  if (!elements || piece.begin < 0 || piece.end < piece.begin || piece.end > *elements) {
    return invalid_argument("tensor '" + piece.name + "': elements " + std::to_string(piece.begin) +
                            " to " + std::to_string(piece.end) + " do not lie in its shape");
  }
  return ok_status();
}

std::vector<Piece> share_of(const std::vector<Piece>& pieces, int index, int count) {
  std::uint64_t total = 0;
  for (const Piece& p : pieces) total += bytes_of(p);
  const auto n = static_cast<std::uint64_t>(count), i = static_cast<std::uint64_t>(index);
  // begin of part i of n, without overflow
  const auto bound = [&](std::uint64_t part) { return total / n * part + total % n * part / n; };
  const std::uint64_t first = bound(i), last = bound(i + 1);
  std::vector<Piece> share;
  std::uint64_t at = 0;
  for (const Piece& p : pieces) {
    const std::uint64_t bytes = bytes_of(p);
    if (bytes == 0) {
      if (index == 0) share.push_back(p);
      continue;
    }
    const std::uint64_t width = bytes / static_cast<std::uint64_t>(p.end - p.begin);
    // Both ends of a part are rounded up to a whole element, so that neighbours agree.
    const auto element = [&](std::uint64_t byte) {
      const std::uint64_t inside = byte <= at ? 0 : std::min(byte - at, bytes);
      return static_cast<std::int64_t>((inside + width - 1) / width);
    };
    Piece part = p;
    part.begin = p.begin + element(first);
    part.end = p.begin + element(last);
    part.data =
        static_cast<const char*>(p.data) + static_cast<std::uint64_t>(element(first)) * width;
    if (part.end > part.begin) share.push_back(std::move(part));
    at += bytes;
  }
  return share;
}

}  // namespace stormo::checkpoint
