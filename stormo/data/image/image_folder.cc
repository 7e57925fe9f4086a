#include <stormo/data/image/image_folder.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <span>
#include <thread>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/data/data_file.h>
#include <stormo/data/fingerprint.h>
#include <stormo/data/image/image.h>

namespace stormo::data {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kEndings = {".jpg", ".jpeg", ".png"};
constexpr std::uintmax_t kMaxFileBytes = 1u << 28;
constexpr std::size_t kFrontBytes = 16;
/// What fingerprint() reads: all of this many files, if they have no more than Fingerprint reads of
/// a file, else the front of some.
constexpr std::size_t kWholeImages = 16384;
constexpr std::size_t kFingerprintImages = 256;
constexpr std::size_t kFingerprintBytes = std::size_t{256} << 10;

/// The first `most` bytes of a file, all of a shorter one.
Result<std::string> read_front(const std::string& path, std::uintmax_t most) {
  STORMO_ASSIGN_OR_RETURN(const auto file, DataFile::open(path));
  if (file->size() > kMaxFileBytes) {
    return Status(Code::kCorrupt, fmt::format("{}: {} bytes, at most {} are read", path,
                                              file->size(), kMaxFileBytes));
  }
  return file->read_front(most);
}

Result<Image> read_image(const std::string& path, const ImageFolderOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const std::string bytes, read_front(path, kMaxFileBytes));
  Result<Image> image = decode_image(bytes, o.channels, o.height, o.width);
  return image.ok() ? std::move(image) : image.status().within(path);
}

/// Whether an image can be used, as far as `options` wants to know before it is.
Status try_image(const std::string& path, const ImageFolderOptions& options) {
  if (options.on_error == OnError::kSkip) {
    return read_image(path, options).status();
  }
  STORMO_ASSIGN_OR_RETURN(const std::string front, read_front(path, kFrontBytes));
  if (is_known_image(front)) return {};
  return {Code::kCorrupt, path +
                              ": neither a JPEG nor a PNG, by its first bytes; mend or remove "
                              "it, or set data.on_error = \"skip\""};
}

template <class T>
void normalise(std::span<const float> values, const ImageOptions& options, T* out) {
  for (const float value : values) {
    *out++ = static_cast<T>((static_cast<double>(value) / 255 - options.mean) / options.stddev);
  }
}

}  // namespace

Result<std::shared_ptr<const ImageFolder>> ImageFolder::create(
    const std::string& directory, const ImageFolderOptions& options,
    const std::vector<std::string>& classes) {
  STORMO_CHECK(options.channels == 1 || options.channels == 3, "grey or colour");
  std::shared_ptr<ImageFolder> folder(new ImageFolder(options, directory));
  STORMO_RETURN_IF_ERROR(folder->list(classes));
  STORMO_RETURN_IF_ERROR(folder->check());
  if (folder->samples_.empty()) {
    return invalid_argument(fmt::format("{}: no image can be decoded, the first: {}", directory,
                                        folder->files_.skipped().front()));
  }
  return std::shared_ptr<const ImageFolder>(std::move(folder));
}

Result<std::shared_ptr<const ImageFolder>> ImageFolder::of_file(const std::string& path,
                                                                const ImageFolderOptions& options) {
  std::shared_ptr<ImageFolder> folder(new ImageFolder(options, ""));
  folder->samples_.push_back({path, 0});
  STORMO_RETURN_IF_ERROR(folder->check());
  return std::shared_ptr<const ImageFolder>(std::move(folder));
}

Status ImageFolder::list(const std::vector<std::string>& classes) {
  std::error_code error;
  if (!fs::is_directory(directory_, error)) {
    return {Code::kNotFound,
            fmt::format("{} is no folder; set data.path, data.train, data.validation and "
                        "data.test to folders that hold a folder for each class",
                        directory_)};
  }
  FileTree tree(directory_,
                {.endings = kEndings, .ignored_folders = {}, .on_error = options_.on_error},
                files_);
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> names, tree.folders());
  if (names.empty()) {
    return invalid_argument(
        fmt::format("{} holds no folders; an image folder has one for each class", directory_));
  }
  classes_ = classes.empty() ? names : classes;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(classes_, name);
    if (found == classes_.end()) {
      return invalid_argument(
          fmt::format("{}: class \"{}\" is none of the training part's", directory_, name));
    }
    STORMO_RETURN_IF_ERROR(list_class(tree, name, found - classes_.begin()));
  }
  return {};
}

Status ImageFolder::list_class(FileTree& tree, const std::string& name, std::int64_t label) {
  const std::string path = (fs::path(directory_) / name).string();
  const std::size_t skipped = files_.skipped().size();
  std::vector<std::string> paths;
  STORMO_RETURN_IF_ERROR(tree.add_files(path, paths));
  if (paths.empty() && files_.skipped().size() == skipped) {
    const std::string others = files_.summary();
    return invalid_argument(fmt::format("{} holds no image ({}); add some or remove the folder{}{}",
                                        path, fmt::join(kEndings, ", "),
                                        others.empty() ? "" : ". Left out so far: ", others));
  }
  std::ranges::sort(paths);
  for (std::string& image : paths) samples_.push_back({std::move(image), label});
  return {};
}

// Every image is tried by one of the threads; what comes of it does not depend on which.
Status ImageFolder::check() {
  std::vector<Status> found(samples_.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < found.size(); i = next++) {
      found[i] = try_image(samples_[i].path, options_);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < options_.threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();

  std::vector<Sample> good;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].ok()) {
      good.push_back(std::move(samples_[i]));
    } else if (options_.on_error == OnError::kFail) {
      return found[i];
    } else {
      files_.skip(fs::path(samples_[i].path).lexically_relative(directory_).string(),
                  found[i].message());
    }
  }
  samples_ = std::move(good);
  files_.take(std::ssize(samples_));
  return {};
}

Batch ImageFolder::get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const {
  const auto& [channels, height, width, values, on_error, threads] = options_;
  Batch batch{torch::empty({std::ssize(indices), channels, height, width}, values.dtype),
              torch::empty({std::ssize(indices)}, torch::kInt64)};
  const std::int64_t elements = channels * height * width;
  std::vector<float> picture(static_cast<std::size_t>(elements));
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  for (std::size_t row = 0; row < indices.size(); ++row) {
    STORMO_CHECK(indices[row] >= 0 && indices[row] < size(), "sample index out of range");
    const Sample& sample = samples_[static_cast<std::size_t>(indices[row])];
    resize_and_crop(read_image(sample.path, options_).take_or_throw(), height, width, picture);
    const std::int64_t at = static_cast<std::int64_t>(row) * elements;
    if (values.dtype == torch::kFloat64) {
      normalise(picture, values, batch.input.mutable_data_ptr<double>() + at);
    } else {
      normalise(picture, values, batch.input.mutable_data_ptr<float>() + at);
    }
    target[row] = sample.label;
  }
  return batch;
}

SampleLabels ImageFolder::strata() const {
  std::vector<std::int32_t> strata;
  for (const Sample& sample : samples_) strata.push_back(static_cast<std::int32_t>(sample.label));
  return strata;
}

std::uint64_t ImageFolder::fingerprint() const {
  Fingerprint content;
  for (const std::int64_t size : {options_.channels, options_.height, options_.width}) {
    content.add(size);
  }
  for (const std::string& name : classes_) content.add(name);
  std::uintmax_t all = 0;
  for (const Sample& sample : samples_) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(sample.path, error);
    if (!error) all += bytes;
    const std::string_view below = std::string_view(sample.path).substr(directory_.size());
    content.add(below.substr(below.starts_with('/') ? 1 : 0));
    content.add(error ? -1 : static_cast<std::int64_t>(bytes));
    content.add(sample.label);
  }
  const bool whole = samples_.size() <= kWholeImages && all <= Fingerprint::kMostBytes;
  const std::size_t images =
      whole ? samples_.size() : std::min(samples_.size(), kFingerprintImages);
  for (std::size_t i = 0; i < images; ++i) {
    const std::string& path = samples_[i * samples_.size() / images].path;
    content.add(read_front(path, whole ? kMaxFileBytes : kFingerprintBytes).take_or_throw());
  }
  return content.value();
}

}  // namespace stormo::data
