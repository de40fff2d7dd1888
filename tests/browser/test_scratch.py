def test_drive(page):
    page.open("91-drive")
    page.run_all()
    page.run_cells()
    page.shot("drive")
    print(page.errors)
