#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/file_tree.h>
#include <stormo/data/image/image_dataset.h>

namespace stormo::data {

struct ImageFolderOptions {
  std::int64_t channels = 3;  ///< 1 or 3
  std::int64_t height = 32;
  std::int64_t width = 32;
  ImageOptions values = {.dtype = torch::kFloat32, .mean = 0.5, .stddev = 0.5};
  /// kFail: create() finds an image with wrong first bytes, get() a broken one. kSkip: create()
  /// decodes every image once.
  OnError on_error = OnError::kFail;
  int threads = 1;  ///< threads that decode in create()
};

/// Images in one folder per class: DIRECTORY/CLASS/.../NAME.jpg, .jpeg or .png, found by FileTree.
/// Classes are the names of the folders in ascending order, samples the paths in ascending order,
/// so the same files give the same samples on every rank. The images that kSkip leaves out also
/// depend only on the files. get() decodes images, on
/// the threads of the prefetcher, resizes them and crops the centre. A batch is [B, channels,
/// height, width] and [B] int64.
class ImageFolder final : public Dataset {
 public:
  /// `classes`: those of the training split, for the other splits; empty: those of this folder.
  /// kNotFound, kIo, kInvalidArgument or kCorrupt name folder or image.
  static Result<std::shared_ptr<const ImageFolder>> create(
      const std::string& directory, const ImageFolderOptions& options,
      const std::vector<std::string>& classes = {});

  /// One image as the only sample, of class 0. Failures as above.
  static Result<std::shared_ptr<const ImageFolder>> of_file(const std::string& path,
                                                            const ImageFolderOptions& options);

  std::int64_t size() const override { return std::ssize(samples_); }
  /// Throws Error, naming the file, for an image that cannot be decoded.
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  SampleLabels strata() const override;
  /// Over classes, names, sizes and labels of all images, and over the first 256 KiB of 256 images
  /// at equal distances, or of all where there are no more.
  std::uint64_t fingerprint() const override;

  const std::vector<std::string>& classes() const { return classes_; }
  /// What was taken and left out; its skipped(): "cats/7.jpg: not a whole JPEG (...)".
  const FileCount& files() const { return files_; }

 private:
  struct Sample {
    std::string path;
    std::int64_t label = 0;
  };
  ImageFolder(const ImageFolderOptions& options, std::string directory)
      : options_(options), directory_(std::move(directory)) {}
  Status list(const std::vector<std::string>& classes);
  Status list_class(FileTree& tree, const std::string& name, std::int64_t label);
  Status check();

  ImageFolderOptions options_;
  std::string directory_;
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
  FileCount files_;
};

}  // namespace stormo::data
