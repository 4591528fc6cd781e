#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/format/file.h"

namespace trireme::format {

/// The folder `checkpoints/` of a run. A step is written beside its place and renamed into it:
///
///     step-00000400/           whole: it has an index.json
///     step-00000500.tmp/       being written, or left behind; never read
///
/// A name with ".tmp" is never taken for a checkpoint, so a step is whole or absent, at every
/// instant and after every crash. Failures are CheckpointErrors. One process of a run does this.

/// "step-00000500": eight digits, more if needed.
std::string step_name(int64_t step);

/// A sentence if the folder has the name of another step than `step`, which its index says: a copy
/// that was renamed would be taken for the run's future.
std::optional<std::string> wrong_name(const std::string& path, int64_t step);

/// The whole steps, ascending; none if there is no such folder. Other names are ignored.
std::vector<int64_t> list(const std::string& folder);

/// Folders that have the name of a step and no index.json, which `list` leaves out.
std::vector<std::string> list_unfinished(const std::string& folder);

/// Makes a folder and those above it; each is on the disk before the next is made.
void make_folders(const std::string& path);

/// Makes an empty step-N.tmp (and `folder`, where it is missing) and returns its path. The files of
/// the checkpoint go there, each fsynced by its writer, index.json last.
std::string begin(const std::string& folder, int64_t step);

/// Renames step-N.tmp to step-N, replacing an older step-N, and returns its path. After this the
/// checkpoint survives a loss of power.
std::string commit(const std::string& folder, int64_t step);

/// Removes the oldest steps until `keep` are left; returns those that it removed.
std::vector<int64_t> prune(const std::string& folder, int64_t keep,
                           std::optional<int64_t> spared = {});

/// Removes what crashes have left: every step-N.tmp*. An older step that was renamed for a
/// successor which never arrived gets its name back. Must not run while somebody is writing.
void remove_leftovers(const std::string& folder);

/// Renames a step that cannot be read to step-N.damaged; returns the new path.
std::string put_aside(const std::string& folder, int64_t step);

/// The same for one folder of any name: an empty PATH.tmp, which must not be there yet, then
/// renamed to PATH, which must not be there either.
std::string begin_beside(const std::string& path);
void commit_beside(const std::string& path);
/// After a failure: removes PATH.tmp.
void abandon_beside(const std::string& path);

/// Removes a file, or a folder with everything in it. Does not follow links.
void remove_all(const std::string& path);

}  // namespace trireme::format
