#pragma once

/// A disk that fails, for everything that this process writes below one folder: a shared library
/// that stands before libc's open, write, fsync, rename and so on. A test links it and arms it, or
/// a program gets it by LD_PRELOAD and FAULTY_DISK="HOW AT FOLDER" (FAULTY_DISK_LOG: a file for the
/// operations, one a line).
///
/// Operations on the folder are counted from 1; at number `at` it happens:
///
///   none       nothing; they are only counted and logged
///   eio        that one fails with EIO, once
///   enospc     a write stops halfway; from then on write and mkdir fail with ENOSPC
///   erofs      from then on all that changes something fails with EROFS
///   slow       fsync of a file part-00001 takes `at` milliseconds
///   lost       power goes (exit code kPowerLost). Only what was fsynced is left: of files the
///   bytes
///              at their last fsync, of folders the names at theirs
///   removed    the same, but whatever was removed is gone, fsynced or not
///   torn       the same, but all names and sizes are there, and bytes that were not fsynced are
///              half of them zeros
extern "C" {
void faulty_disk_arm(const char* how, int at, const char* folder, const char* log);
void faulty_disk_disarm();
/// Operations so far.
int faulty_disk_count();
}

namespace trireme::test {
constexpr int kPowerLost = 77;
}
