/*
 * Cheetah for C++: one-sided put, get and remote call between contexts, and handlers at which sends and requests meet.
 *
 *   Controller         Cheetah/Controller.h        the job: contexts, bells, put, get, remote call, barrier
 *   MatchingHandler    Cheetah/MatchingHandler.h   values of any type, sent by one context and requested by another
 *   Serialize          Cheetah/Serialize.h         how they travel
 *
 * C++98 and later, g++ and clang++. The C calls of cheetah.h can be used beside it. Everything is called by the thread that made
 * the first controller.
 */
#ifndef BELLWETHER_CHEETAH_CHEETAH_H
#define BELLWETHER_CHEETAH_CHEETAH_H

#include <Cheetah/Controller.h>
#include <Cheetah/MatchingHandler.h>
#include <Cheetah/Serialize.h>

#endif
