#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace trireme::test {

constexpr const char* kNothingThrown = "nothing was thrown";

/// The sentence of the error of type E that the body throws, or kNothingThrown; another kind of
/// error is a failure.
template <class E, class Body>
std::string outcome_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return error.what();
  }
  return kNothingThrown;
}

/// The same, where nothing thrown is a failure too.
template <class E, class Body>
std::string sentence_of(const Body& body) {
  const std::string outcome = outcome_of<E>(body);
  EXPECT_NE(outcome, kNothingThrown);
  return outcome;
}

}  // namespace trireme::test
