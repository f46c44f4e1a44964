"""Programs that were written for pydaos."""

import pickle
import unittest

import numpy

import pydaos
import weir


class Names(unittest.TestCase):
    def test_a_program_for_pydaos_runs(self):
        weir.create("tank", "neo")
        container = pydaos.DCont("tank", "neo", None)
        self.assertEqual(str(container), "tank/neo")
        stadiums = container.dict("stadium", {"Barcelona": "Camp Nou", "London": "Wembley"})
        self.assertIsInstance(stadiums, pydaos.DDict)
        self.assertEqual((len(stadiums), stadiums["Barcelona"]), (2, b"Camp Nou"))
        stadiums.bput({"Milano": "San Siro"})
        wanted = {"Milano": None, "London": None}
        stadiums.bget(wanted)
        self.assertEqual(wanted, {"Milano": b"San Siro", "London": b"Wembley"})
        self.assertEqual(stadiums.dump()[b"Milano"], b"San Siro")
        by_path = pydaos.DCont(path="daos://tank/neo")
        self.assertEqual(by_path.get("stadium").pop("London"), b"Wembley")
        self.assertNotIn("London", stadiums)
        array = container.array("a", numpy.arange(10))
        self.assertIsInstance(array, pydaos.DArray)
        self.assertRaises(pydaos.DObjNotFound, container.get, "none")
        self.assertRaises(pydaos.PyDError, pydaos.DCont, "tank", "none")
        again = pickle.loads(pickle.dumps(container))
        self.assertEqual(again["stadium"]["Barcelona"], b"Camp Nou")
        for one in (container, by_path, again):
            one.close()
        for wrong in ({}, {"path": "tank/neo"}, {"path": "daos://tank"}, {"pool": "tank", "path": "daos://tank/neo"}):
            self.assertRaises(ValueError, pydaos.DCont, **wrong)
